"""Runs the command as a person does: another folder, a real process, and a look at what it leaves behind."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from autotune.hardware import probe_host
from autotune.sandbox.system import ENDING_SIGNALS, WINDOWS

ROOT = Path(__file__).parents[1]
BUDGET_OVERRUN_SECONDS = 5.0
USUAL_IMPORT_SECONDS = 3.0
BUSY_SHARE = 0.75
"""Share of the time in which a worker of the tests computes; for the rest it waits."""


def temporary_of(folder: Path) -> Path:
    """A temporary folder for the commands that run in a folder, which also finds it as ``tmp``.

    Its path is short, unlike pytest's own: in one that is too long for sockets autotune would use another.
    """
    link = folder / "tmp"
    if not link.exists():
        made = tempfile.mkdtemp(prefix="commands-")
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        link.symlink_to(made)
    return link.resolve()


@functools.cache
def slowness() -> float:
    """How many times as long as on two idle cores of a usual machine a test takes here; 1 at least.

    It follows the processor's time for an import of torch, and the number of workers beside it: seconds by the clock
    depend on what these do just then.
    """
    code = "import time, torch._dynamo; print(time.process_time())"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    beside = max(1.0, BUSY_SHARE * workers / probe_host().cpu.budget)
    return max(1.0, beside * float(done.stdout.split()[-1]) / USUAL_IMPORT_SECONDS)


def budget(seconds: float) -> str:
    """A budget that holds here what so many seconds hold elsewhere."""
    return f"{seconds * slowness():.0f}s"


def has_measured(journal: Path) -> bool:
    """Whether a first burst has ended well in a tuning: from then on there is something to keep."""
    return journal.exists() and '"state":1' in journal.read_text()


def wait_for_file(file: Path, seconds: float = 60.0) -> None:
    """Until it is there."""
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def heed_signals() -> None:
    """For a process that is about to start: a test run in the background, or under nohup, ignores some signals."""
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True)
class Finished:
    """A command that has ended.

    Attributes:
        status: Its exit status.
        out: What it printed to standard output.
        err: To standard error.
        seconds: From its start to its end.
        left: What it left: processes, temporary folders, shared memory where that is looked at.
    """

    status: int
    out: str
    err: str
    seconds: float
    left: tuple[str, ...]


class Command:
    """``autotune`` with some arguments, running in a folder; its temporary folder is its own and looked at later.

    By default its lines are so long that no path of a test's folder is broken.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        program: Sequence[str] = (sys.executable, "-m", "autotune"),
        columns: int = 250,
    ) -> None:
        self.temporary = temporary_of(folder)
        self._slowness = slowness()  # timed before the command runs, which it would disturb
        environment = {
            **os.environ, "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT), "COLUMNS": str(columns),
        }  # fmt: skip
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [*program, *arguments],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, preexec_fn=None if WINDOWS else heed_signals,
        )  # fmt: skip
        self._seen: dict[int, psutil.Process] = {}

    def tree(self) -> list[psutil.Process]:
        """The processes below the command now; remembered, to be looked for when it has ended."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return []
        self._seen |= {child.pid: child for child in children}
        return children

    def wait_for(self, condition: Callable[[], bool], seconds: float = 40.0) -> None:
        """Waits until something has happened, e.g. a file has appeared; longer on a slow machine."""
        deadline = time.monotonic() + seconds * self._slowness
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            assert self.process.poll() is None, self.process.communicate()
            self.tree()
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the command alone, not to its children."""
        if WINDOWS:
            pytest.skip("Windows sends no signals")
        self.tree()
        self.process.send_signal(number)

    def finish(self, seconds: float = 120.0) -> Finished:
        """Waits for its end, longer on a slow machine, and looks for what it left: processes and temporary folders."""
        self.tree()
        out, err = self.process.communicate(timeout=seconds * self._slowness)
        taken = time.monotonic() - self.began
        _, alive = psutil.wait_procs(list(self._seen.values()), timeout=3)
        folders = [path.name for path in self.temporary.glob("autotune-*")]
        left = (*(str(process) for process in alive), *folders)
        return Finished(self.process.returncode, out, err, taken, left)


def run(arguments: Sequence[str], folder: Path, seconds: float = 120.0) -> Finished:
    """Runs the command to its end."""
    return Command(arguments, folder).finish(seconds)
