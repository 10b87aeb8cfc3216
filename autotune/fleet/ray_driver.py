"""The driver of a Ray cluster: reads requests as lines of JSON, and prints how each task ended.

When its input ends, it ends its tasks and itself.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.fleet.job import run_job

EVENTS = 40
"""File descriptor for events; nothing else uses this number so early."""
CONNECT_SECONDS = 10.0
STRANDED_SECONDS = 10.0
"""Time for Ray to report a task whose node has died: it took half a second."""
LEAST_CPUS = 1
"""CPUs of a task that asks for none, as in Ray itself."""
TURN_SECONDS = 0.5
"""How long it waits for a task before it checks for requests again."""


def lacking(needs: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """Why no node can ever run a task, as a sentence; None if one can.

    Args:
        needs: ``cpus``, ``gpus``, ``labels`` and ``resources``.
        nodes: The nodes, as `ray.nodes` lists them.
    """
    required = {"CPU": needs["cpus"] or LEAST_CPUS, "GPU": needs["gpus"] or 0, **needs["resources"]}
    alive = [node for node in nodes if node["Alive"]]
    for node in alive:
        labels, resources = node.get("Labels") or {}, node["Resources"]
        if all(labels.get(key) == value for key, value in needs["labels"].items()) and all(
            resources.get(name, 0) >= amount for name, amount in required.items()
        ):
            return None
    requirements = [f"{name}={value:g}" for name, value in required.items() if value]
    requirements += [f"{key}={value}" for key, value in needs["labels"].items()]
    needed = ", ".join(requirements) or "what it needs"
    offers = sorted({_offer(node) for node in alive})
    return f"no node of the cluster has {needed}; it has {' | '.join(offers) or 'no nodes'}"


def _offer(node: Mapping[str, Any]) -> str:
    """Resources and labels of a node, without those that Ray gives to every node."""
    resources = {name: value for name, value in node["Resources"].items() if name in {"CPU", "GPU"} or ":" not in name}
    parts = [f"{name}={value:g}" for name, value in resources.items() if "memory" not in name]
    labels = (node.get("Labels") or {}).items()
    return ", ".join(sorted([*parts, *(f"{key}={value}" for key, value in labels if key != "ray.io/node-id")]))


@dataclass
class Task:
    """A started task.

    Attributes:
        machine: Kind of machine that it runs on.
        needs: What its node must have.
        stranded: Since when no node has that; None while one does.
    """

    machine: str
    needs: dict[str, Any]
    stranded: float | None = None


class Driver:
    """Tasks of a cluster that this process has joined."""

    def __init__(self, ray: Any, wait: float) -> None:
        self._ray = ray
        self._wait = wait
        self._tasks: dict[Any, Task] = {}

    def serve(self, requests: queue.Queue[dict[str, Any] | None]) -> None:
        """Handles requests until there are no more."""
        while True:
            try:
                request = requests.get(timeout=0 if self._tasks else TURN_SECONDS)
            except queue.Empty:
                pass
            else:
                if request is None:
                    return
                if "cancel" in request:
                    self._cancel()
                else:
                    self._start(request)
            self._report_ended()
            self._give_up_stranded()

    def _start(self, request: Mapping[str, Any]) -> None:
        """Starts a task. Reports one that no node can run, unless it may wait: a cluster may add nodes for it."""
        job, needs = request["job"], request["needs"]
        why = lacking(needs, self._ray.nodes())
        if why is not None and not self._wait:
            report(job["machine"], "absent", reason=why)
            return
        try:
            remote = self._ray.remote(run_job).options(
                num_cpus=needs["cpus"] or LEAST_CPUS,
                num_gpus=needs["gpus"] or 0,
                resources=needs["resources"] or None,
                label_selector=needs["labels"] or None,
                max_retries=0,
            )
            reference = remote.remote(job)
        except Exception as error:  # noqa: BLE001 - Ray refuses in many ways; the other machines continue
            report(job["machine"], "failed", reason=f"Ray refuses it: {_sentence(error)}")
            return
        self._tasks[reference] = Task(job["machine"], needs)

    def _report_ended(self) -> None:
        if not self._tasks:
            return
        ended, _ = self._ray.wait(list(self._tasks), timeout=TURN_SECONDS)
        errors = self._ray.exceptions
        for reference in ended:
            machine = self._tasks.pop(reference).machine
            try:
                report(machine, "done", reply=self._ray.get(reference))
            except (errors.TaskCancelledError, errors.RuntimeEnvSetupError, errors.RayTaskError) as error:
                report(machine, "failed", reason=_sentence(error))
            except errors.RayError as error:
                report(machine, "lost", reason=_sentence(error))

    def _give_up_stranded(self) -> None:
        """Cancels tasks that wait for a node that has died; Ray would wait for ever."""
        nodes, now = self._ray.nodes() if self._tasks else [], time.monotonic()
        for reference, task in list(self._tasks.items()):
            why = lacking(task.needs, nodes)
            task.stranded = None if why is None else task.stranded or now
            if why is not None and now - (task.stranded or now) > self._wait + STRANDED_SECONDS:
                del self._tasks[reference]
                self._ray.cancel(reference, force=True)
                report(task.machine, "absent", reason=why)

    def _cancel(self) -> None:
        for reference in self._tasks:
            self._ray.cancel(reference)


def _sentence(error: Exception) -> str:
    """The line of an error that says most: the last one of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[-1] if 'Traceback' in str(error) else lines[0]}"


def report(machine: str, fate: str, *, reply: dict[str, Any] | None = None, reason: str = "") -> None:
    """Writes an event about a machine."""
    _write({"machine": machine, "fate": fate, "reply": reply, "reason": reason})


def _write(event: dict[str, Any]) -> None:
    line = (json.dumps(event) + "\n").encode()
    while line:
        line = line[os.write(EVENTS, line) :]


def reach(address: str) -> None:
    """Makes sure that a server listens at ``host:port``; Ray itself would try for minutes.

    Raises:
        OSError: None does.
    """
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def _read(requests: queue.Queue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        requests.put(json.loads(line))
    requests.put(None)


def main() -> None:
    """Entry point."""
    os.dup2(1, EVENTS, inheritable=False)
    os.dup2(2, 1)  # Ray's own output must not mix with the events
    cluster = json.loads(sys.stdin.readline())
    try:
        reach(cluster["address"])
        import ray

        environment = {"working_dir": cluster["folder"], "excludes": cluster["excludes"]}
        ray.init(address=cluster["address"], runtime_env=environment, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # noqa: BLE001 - Ray has dozens of errors for a cluster that cannot be used
        _write({"event": "refused", "reason": _sentence(error)})
        return
    _write({"event": "ready"})
    requests: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    Driver(ray, cluster["wait"]).serve(requests)
    ray.shutdown()


if __name__ == "__main__":
    main()
