"""Jobs on a Ray cluster, through a driver in its own process: Ray ends the driver's process with the cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from autotune.errors import AutotuneError, UsageError
from autotune.fleet.campaign import Event
from autotune.fleet.job import Job, Reply, last_line
from autotune.fleet.plan import MachineKind

CONNECT_SECONDS = 120.0
"""Time to join the cluster and send the folder; Ray itself waits 30 s or more for a cluster that does not answer."""
ENDING_SECONDS = 30.0
"""Time for the driver to end its jobs. Not tuned."""


class RayEngine:
    """Runs jobs as tasks of a Ray cluster, which sends the folder to its nodes.

    Args:
        address: Address of the cluster; None for the cluster that this machine belongs to.
        folder: Folder with the user's programs, which becomes the tasks' working directory.
        excludes: Files and folders in it that are not sent.
        wait: Seconds that a task may wait for a node that can run it; None if it must not wait.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str | None, folder: Path, excludes: Sequence[str], wait: float | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("the engine ray needs Ray, which is not installed; pip install ray")
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close()
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "autotune.fleet.ray_driver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C must not reach it: this process ends the jobs cleanly
        )
        self._running: set[str] = set()
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._ask(address=address or "auto", folder=str(folder), excludes=list(excludes), wait=wait or 0.0)
        first = self._next(CONNECT_SECONDS)
        if first is None or first.get("event") != "ready":
            reason = (first or {}).get("reason") or self._last_words()
            self.close()
            raise UsageError(f"the Ray cluster at {address or 'auto'} cannot be used: {reason}")

    def start(self, job: Job, kind: MachineKind) -> None:
        """Sends a job."""
        needs = {"cpus": kind.cpus, "gpus": kind.gpus, "labels": kind.labels, "resources": kind.resources}
        self._running.add(job.machine)
        self._ask(job=job.plain(), needs=needs)

    def events(self, seconds: float) -> Sequence[Event]:
        """Returns the jobs that have ended; if the driver is gone, all jobs have failed.

        Raises:
            AutotuneError: The driver is gone, and no job was running.
        """
        ends = time.monotonic() + seconds
        while (remaining := ends - time.monotonic()) > 0:
            line = self._next(remaining)
            if line is not None:
                self._running.discard(line["machine"])
                reply = Reply(**line["reply"]) if line["reply"] is not None else None
                return [Event(line["machine"], line["fate"], reply, line["reason"])]
            if self._driver.poll() is not None:
                return self._all_lost()
        return []

    def cancel(self) -> None:
        """Asks all tasks to end."""
        with contextlib.suppress(AutotuneError):
            self._ask(cancel=True)

    def close(self) -> None:
        """Ends the driver, whose tasks end with it."""
        with contextlib.suppress(OSError):
            cast("IO[str]", self._driver.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._driver.wait(ENDING_SECONDS)
        self._driver.kill()
        self._driver.wait()
        self._errors.close()

    def _all_lost(self) -> Sequence[Event]:
        reason = f"the cluster is gone: {self._last_words()}"
        if not self._running:
            raise AutotuneError(reason)
        lost = [Event(machine, "failed", reason=reason) for machine in sorted(self._running)]
        self._running.clear()
        return lost

    def _ask(self, **request: Any) -> None:
        pipe = cast("IO[str]", self._driver.stdin)
        try:
            pipe.write(json.dumps(request) + "\n")
            pipe.flush()
        except OSError:  # events() reports the jobs that were running
            if not self._running:
                raise AutotuneError(f"the Ray cluster is gone: {self._last_words()}") from None

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The driver's next line; None if none comes in time, or the driver is gone."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def _read(self) -> None:
        for line in cast("IO[str]", self._driver.stdout):
            with contextlib.suppress(ValueError):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return last_line(self._errors.read(), "it does not answer")
