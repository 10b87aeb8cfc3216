"""Runs the command with a fault around it, and looks at what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.faults.residue import Residue
from tests.processes import ROOT, Finished, heed_signals, slowness, temporary_of

TINY = "tests.workloads.tiny:build"
AUTOTUNE = (sys.executable, "-m", "autotune")


class Run:
    """``autotune`` with some arguments, in a folder, with a temporary folder of its own.

    Args:
        arguments: Of the command line.
        folder: Where it runs.
        environment: Variables to set besides.
        before: Words before the command, such as ``nohup``.
        command: What is run.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        command: Sequence[str] = AUTOTUNE,
    ) -> None:
        self.temporary = temporary_of(folder)
        self._slowness = slowness()  # timed before the command runs, which it would disturb
        self._printed = {name: folder / name for name in ("out.txt", "err.txt")}
        self._residue = Residue(self.temporary)
        self._began = time.monotonic()
        variables = {**os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT), **(environment or {})}
        with self._printed["out.txt"].open("w") as out, self._printed["err.txt"].open("w") as err:
            self.process = subprocess.Popen(
                [*before, *command, *arguments],
                cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                preexec_fn=heed_signals,
            )  # fmt: skip

    @property
    def err(self) -> str:
        """What it has printed to standard error so far."""
        return " ".join(self._printed["err.txt"].read_text().split())

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Waits until something has happened, such as a stage that has begun; longer on a slow machine."""
        deadline = time.monotonic() + seconds * self._slowness
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen in time: {self.err}"
            assert self.process.poll() is None, f"it ended before: {self.err}"
            time.sleep(0.02)

    def wait_for_stage(self, name: str) -> None:
        """Waits until a stage has begun."""
        self.wait_for(lambda: f"{name} …" in self.err)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the command alone, not to its children."""
        self.process.send_signal(number)

    def finish(self, seconds: float = 120.0) -> Finished:
        """Waits for its end, longer on a slow machine, and looks for what it left."""
        try:
            self.process.wait(seconds * self._slowness)
        finally:
            self.process.kill()
        taken = time.monotonic() - self._began
        left = (*self._residue.found(), *self._residue.folders())
        return Finished(self.process.returncode, self._printed["out.txt"].read_text(), self.err, taken, left)


def run(arguments: Sequence[str], folder: Path, **how: Mapping[str, str] | Sequence[str]) -> Finished:
    """Runs the command to its end."""
    return Run(arguments, folder, **how).finish()  # type: ignore[arg-type]
