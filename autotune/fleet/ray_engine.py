"""Jobs on a Ray cluster, through a driver in its own process: Ray ends the driver's process with the cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, UsageError
from autotune.fleet.campaign import Ending
from autotune.fleet.job import Job, reason_in
from autotune.fleet.plan import MachineKind
from autotune.fleet.ray_driver import READY

CONNECT_SECONDS = 120.0
"""Time to join the cluster and send the folder; Ray itself waits 30 s or more for a cluster that does not answer."""
ENDING_SECONDS = 30.0
"""Time for the driver to end its jobs. Not tuned."""


class RayEngine:
    """Runs jobs as tasks of a Ray cluster, which sends the folder to its nodes.

    Args:
        address: None for the cluster that this machine belongs to.
        folder: The user's programs; becomes the tasks' working directory.
        excludes: What is not sent of it.
        wait: Seconds that a task may wait for its node; None: 0.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str | None, folder: Path, excludes: Sequence[str], wait: float | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("the engine ray needs Ray, which is not installed; pip install ray")
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by close()
        self._connection, theirs = multiprocessing.Pipe()
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "autotune.fleet.ray_driver", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C must not reach it: this process ends the jobs cleanly
        )
        theirs.close()
        self._running: set[str] = set()
        answer = None
        with contextlib.suppress(EOFError, OSError):  # it ended
            wait_seconds = wait or 0.0
            self._ask(address=address or "auto", folder=str(folder), excludes=list(excludes), wait=wait_seconds)
            answer = self._connection.recv() if self._connection.poll(CONNECT_SECONDS) else None
        if answer != READY:
            reason = answer or self._last_words()
            self.close()
            raise UsageError(f"the Ray cluster at {address or 'auto'} cannot be used: {reason}")

    def start(self, job: Job, kind: MachineKind) -> None:
        """Sends a job."""
        self._running.add(job.machine)
        self._ask(job=job, kind=kind)

    def endings(self, seconds: float) -> Sequence[Ending]:
        """Returns the jobs that have ended; if the driver is gone, all jobs have failed.

        Raises:
            AutotuneError: The driver is gone, and no job was running.
        """
        try:
            if not self._connection.poll(seconds):
                return []
            ending: Ending = self._connection.recv()
        except (EOFError, OSError):
            return self._all_lost()
        self._running.discard(ending.machine)
        return [ending]

    def cancel(self) -> None:
        """Asks all tasks to end."""
        with contextlib.suppress(AutotuneError):
            self._ask(cancel=True)

    def close(self) -> None:
        """Ends the driver, whose tasks end with it."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._driver.wait(ENDING_SECONDS)
        self._driver.kill()
        self._driver.wait()
        self._errors.close()

    def _all_lost(self) -> Sequence[Ending]:
        reason = f"the cluster is gone: {self._last_words()}"
        if not self._running:
            raise AutotuneError(reason)
        lost = [Ending(machine, "failed", message=reason) for machine in sorted(self._running)]
        self._running.clear()
        return lost

    def _ask(self, **request: Any) -> None:
        try:
            self._connection.send(request)
        except OSError:  # endings() reports the jobs that were running
            if not self._running:
                raise AutotuneError(f"the Ray cluster is gone: {self._last_words()}") from None

    def _last_words(self) -> str:
        self._errors.seek(0)
        return reason_in(self._errors.read(), "it does not answer")
