"""What a run of autotune must not leave: processes, shared memory, semaphores, temporary files."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from autotune.bursts.hosts.cleanup import RUN_VARIABLE

SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = ("torch_*", "sem.*", "psm_*", "mp-*")
SETTLE_SECONDS = 5.0


class Residue:
    """Looks at the system when made, and again when asked.

    Others may be at work on this machine: what was there before is not ours, and what goes away by itself was not left.

    Args:
        temporary: The temporary folder that the run is given, and nobody else.
    """

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self._segments = segments()

    def found(self, *, spare: int | None = None, pids: Path | None = None) -> list[str]:
        """What is left after a moment's grace.

        Args:
            spare: A process that may still run, such as the forkserver between two bursts.
            pids: A file of process ids that must be gone.
        """
        suspects = segments() - self._segments
        deadline = time.monotonic() + SETTLE_SECONDS
        while left := [*self._processes(spare), *_alive(pids), *sorted(filter(_is_left, suspects & segments()))]:
            if time.monotonic() > deadline:
                return left
            time.sleep(0.05)
        return []

    def folders(self) -> list[str]:
        """Temporary folders and files of ours; the compiler's cache is meant to stay."""
        return [path.name for path in self.temporary.glob("autotune-*")]

    def _processes(self, spare: int | None) -> Iterator[str]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = process.environ().get(RUN_VARIABLE, "").startswith(str(self.temporary))
                if ours and process.pid != spare and process.status() != psutil.STATUS_ZOMBIE:
                    yield f"{process.pid} {' '.join(process.cmdline())}"


def segments() -> set[str]:
    """Names in shared memory now."""
    return {path.name for pattern in SEGMENTS for path in SHARED_MEMORY.glob(pattern)}


def _is_left(segment: str) -> bool:
    """Whether nobody lives to clean it up: ``sem.loky-<pid>-…`` of another test's process is in use, not left."""
    named = re.search(r"[-_](\d+)[-_]", segment)
    return named is None or not psutil.pid_exists(int(named[1]))


def _alive(pids: Path | None) -> Iterator[str]:
    for line in pids.read_text().split() if pids is not None and pids.exists() else ():
        with contextlib.suppress(psutil.Error):
            if psutil.Process(int(line)).status() != psutil.STATUS_ZOMBIE:
                yield f"process {line}"
