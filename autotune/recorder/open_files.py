"""Places in open files: a forked process shares them with the one that it comes from, and with its other children."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable

SHARED = "the data set reads from a file that it keeps open, whose place workers would share"
_STANDARD = (0, 1, 2)
"""Descriptors of input and output. Several processes write to one file behind them in turn, by one place."""
_Places = dict[tuple[str, int, int], int]
"""Places by descriptor, device and inode."""


class OpenFiles:
    """The regular files that are open now and that this process may read."""

    def __init__(self) -> None:
        self._before = _places()

    def look_again(self) -> None:
        """Leaves out what has been read since, from those of the files that are still open."""
        now = _places()
        self._before = {file: now[file] for file in self._before if file in now}

    @property
    def are_read(self) -> bool:
        """Whether this process has read on in one of them since. Forked workers would have it open too."""
        now = _places()
        return any(now.get(file, place) != place for file, place in self._before.items())


def with_own_places(then: Callable[[int], None] | None) -> Callable[[int], None]:
    """A ``worker_init_fn`` after which a worker shares no place in a file; calls `then`, the loader's own, after it."""
    return functools.partial(_begin_worker, then)


def _begin_worker(then: Callable[[int], None] | None, number: int) -> None:
    for (name, *_), place in _places().items():
        with contextlib.suppress(OSError):  # a file that may no longer be opened stays shared
            _open_again(int(name), place)
    if then is not None:
        then(number)


def _open_again(descriptor: int, place: int) -> None:
    again = os.open(f"/proc/self/fd/{descriptor}", _flags(str(descriptor)) | os.O_CLOEXEC)
    try:
        os.lseek(again, place, os.SEEK_SET)
        os.dup2(again, descriptor, inheritable=os.get_inheritable(descriptor))
    finally:
        os.close(again)


def _places() -> _Places:
    """Nothing where the system has no ``/proc``."""
    places: _Places = {}
    output = [_file_of(descriptor) for descriptor in _STANDARD]
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, ValueError):
                file = _file_of(int(name))
                if file is not None and file not in output and _flags(name) & os.O_ACCMODE != os.O_WRONLY:
                    places[(name, *file)] = os.lseek(int(name), 0, os.SEEK_CUR)
    return places


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Device and inode of the regular file that a descriptor belongs to; None for others."""
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            return status.st_dev, status.st_ino
    return None


def _flags(name: str) -> int:
    with open(f"/proc/self/fdinfo/{name}") as info:
        return int(info.read().split()[3], 8)
