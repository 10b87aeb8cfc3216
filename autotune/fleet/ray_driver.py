"""The driver of a Ray cluster: takes requests from a connection, and sends back how each task ended.

When the connection ends, it ends its tasks and itself.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from autotune.fleet.campaign import Ending, Fate
from autotune.fleet.job import Reply, reason_in, run_job
from autotune.fleet.plan import MachineKind

READY = ""
"""The first message, unless the cluster cannot be used; then it is the reason."""
CONNECT_SECONDS = 10.0
STRANDED_SECONDS = 10.0
"""Time for Ray to report a task whose node has died: it took half a second."""
LEAST_CPUS = 1
"""CPUs of a task that asks for none, as in Ray itself."""
TURN_SECONDS = 0.5
"""How long it waits for a task before it checks for requests again."""


def lacking(kind: MachineKind, nodes: Iterable[Mapping[str, Any]]) -> str | None:
    """Why no node can ever run a task, as a sentence; None if one can.

    Args:
        kind: What it needs.
        nodes: The nodes, as `ray.nodes` lists them.
    """
    required = {"CPU": kind.cpus or LEAST_CPUS, "GPU": kind.gpus or 0, **kind.resources}
    alive = [node for node in nodes if node["Alive"]]
    for node in alive:
        labels, resources = node.get("Labels") or {}, node["Resources"]
        if all(labels.get(key) == value for key, value in kind.labels.items()) and all(
            resources.get(name, 0) >= amount for name, amount in required.items()
        ):
            return None
    requirements = [f"{name}={value:g}" for name, value in required.items() if value]
    requirements += [f"{key}={value}" for key, value in kind.labels.items()]
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
    """A started task."""

    machine: str
    kind: MachineKind  # what its node must have
    stranded: float | None = None  # since when no node has that; None while one does


class Driver:
    """Tasks of a cluster that this process has joined."""

    def __init__(self, ray: Any, wait: float, parent: Connection) -> None:
        self._ray = ray
        self._wait = wait
        self._parent = parent
        self._tasks: dict[Any, Task] = {}

    def serve(self) -> None:
        """Handles requests until there are no more."""
        while True:
            requests: list[Mapping[str, Any]] = []
            try:
                while self._parent.poll(0 if self._tasks or requests else TURN_SECONDS):
                    requests.append(self._parent.recv())
            except (EOFError, OSError):
                return
            for request in requests:
                if "cancel" in request:
                    self._cancel()
                else:
                    self._start(request)
            self._report_ended()
            self._give_up_stranded()

    def _start(self, request: Mapping[str, Any]) -> None:
        """Starts a task. Reports one that no node can run, unless it may wait: a cluster may add nodes for it."""
        job, kind = request["job"], request["kind"]
        machine = job.machine
        why = lacking(kind, self._ray.nodes())
        if why is not None and not self._wait:
            self._report(machine, "absent", reason=why)
            return
        try:
            remote = self._ray.remote(run_job).options(
                num_cpus=kind.cpus or LEAST_CPUS,
                num_gpus=kind.gpus or 0,
                resources=kind.resources or None,
                label_selector=kind.labels or None,
                max_retries=0,
            )
            reference = remote.remote(job)
        except Exception as error:  # noqa: BLE001 - Ray refuses in many ways; the other machines continue
            self._report(machine, "failed", reason=f"Ray refuses it: {_sentence(error)}")
            return
        self._tasks[reference] = Task(machine, kind)

    def _report_ended(self) -> None:
        if not self._tasks:
            return
        ended, _ = self._ray.wait(list(self._tasks), timeout=TURN_SECONDS)
        errors = self._ray.exceptions
        for reference in ended:
            machine = self._tasks.pop(reference).machine
            try:
                self._report(machine, "done", self._ray.get(reference))
            except (errors.TaskCancelledError, errors.RuntimeEnvSetupError, errors.RayTaskError) as error:
                self._report(machine, "failed", reason=_sentence(error))
            except errors.RayError as error:
                self._report(machine, "lost", reason=_sentence(error))

    def _give_up_stranded(self) -> None:
        """Cancels tasks that wait for a node that has died; Ray would wait for ever."""
        nodes, now = self._ray.nodes() if self._tasks else [], time.monotonic()
        for reference, task in list(self._tasks.items()):
            why = lacking(task.kind, nodes)
            task.stranded = None if why is None else task.stranded or now
            if why is not None and now - (task.stranded or now) > self._wait + STRANDED_SECONDS:
                del self._tasks[reference]
                self._ray.cancel(reference, force=True)
                self._report(task.machine, "absent", reason=why)

    def _cancel(self) -> None:
        for reference in self._tasks:
            self._ray.cancel(reference)

    def _report(self, machine: str, fate: Fate, reply: Reply | None = None, reason: str = "") -> None:
        self._parent.send(Ending(machine, fate, reply, reason))


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {reason_in(str(error), summary_first=True)}"


def reach(address: str) -> None:
    """Makes sure that a server listens at ``host:port``; Ray itself would try for minutes.

    Raises:
        OSError: None does.
    """
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def main() -> None:
    """Entry point; the argument is the file descriptor of the connection to the parent."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    parent = Connection(descriptor)
    cluster = parent.recv()
    try:
        reach(cluster["address"])
        import ray

        environment = {"working_dir": cluster["folder"], "excludes": cluster["excludes"]}
        ray.init(address=cluster["address"], runtime_env=environment, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # noqa: BLE001 - Ray has dozens of errors for a cluster that cannot be used
        parent.send(_sentence(error))
        return
    parent.send(READY)
    Driver(ray, cluster["wait"], parent).serve()
    ray.shutdown()


if __name__ == "__main__":
    main()
