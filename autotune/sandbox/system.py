"""What systems do differently: modules, calls and files of the kernel that only some have, and what stands for them.

On Linux everything exists. Elsewhere bursts run in fresh interpreters instead of forks, scripts are not protected, and
figures that no system call reports are missing. Like all of this room, it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
from typing import Any

__all__ = [
    "CHILDREN_ARE_LISTED", "ENDING_SIGNALS", "KILL", "LINUX", "WINDOWS", "Held", "adopt_orphans", "check_status",
    "children_of", "end_with_parent", "fcntl", "libc", "lock", "open_files_limit", "resource", "session_of", "signals",
    "stat_of", "termios", "why_no_fork",
]  # fmt: skip

LINUX, WINDOWS = sys.platform == "linux", sys.platform == "win32"
libc: Any = None
if sys.platform == "win32":
    fcntl = resource = termios = None
else:
    import fcntl
    import resource
    import termios

    libc = ctypes.CDLL(None, use_errno=True)

KILL = 9
"""SIGKILL, which the kernel's out-of-memory killer sends; Windows has no name for it."""
CHILDREN_ARE_LISTED = LINUX and os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
"""Whether the kernel keeps a list of each process's children; some kernels are built without."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def signals(*names: str) -> tuple[signal.Signals, ...]:
    """Those of some signals that this system has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


ENDING_SIGNALS = signals("SIGINT", "SIGTERM", "SIGHUP")


def why_no_fork() -> str | None:
    """Why no process is forked on this system; None on Linux."""
    return None if LINUX else f"{sys.platform} has no safe fork"


def end_with_parent(enabled: bool, number: int = KILL) -> None:
    """Asks the kernel to send this process a signal when its parent dies, or revokes that; only Linux does so."""
    if LINUX:
        libc.prctl(_PR_SET_PDEATHSIG, number if enabled else 0)


def adopt_orphans() -> None:
    """Asks the kernel to make this process the parent of orphaned descendants; only Linux does so."""
    if LINUX:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def check_status(status: int, what: str) -> int:
    """Returns what a function of the C library returned.

    Raises:
        OSError: It is negative: the call has failed.
    """
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return status


def session_of(process: int) -> int | None:
    """The id of a process's session; None if it has ended, and on Windows, which has no sessions."""
    with contextlib.suppress(AttributeError, OSError):
        return os.getsid(process)
    return None


def children_of(process: int | str) -> list[int]:
    """Ids of the direct children of a process, or of ``self``.

    Raises:
        OSError: It has ended, or this system has no such list.
    """
    children: list[int] = []
    for thread in os.listdir(f"/proc/{process}/task"):
        # A thread that has ended: another one has its children now.
        with contextlib.suppress(OSError), open(f"/proc/{process}/task/{thread}/children") as listed:
            children += map(int, listed.read().split())
    return children


def stat_of(process: int | str) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the command's name: the state, the parent's id, and so on.

    Raises:
        OSError: It has ended, or this system has no such file.
    """
    with open(f"/proc/{process}/stat", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()


def open_files_limit() -> tuple[int, int] | None:
    """How many files a process may open, and how far the limit can be raised; None if there is no limit."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else (soft, hard)


class Held:
    """A descriptor in a script's process, whose script may close it and open a file of its own under its number.

    Args:
        number: The descriptor; `close` closes it, unless the script has.
    """

    def __init__(self, number: int) -> None:
        self.number, self._status = number, os.fstat(number)

    @property
    def is_ours(self) -> bool:
        """Whether it still names what it named at first."""
        try:
            return os.path.samestat(os.fstat(self.number), self._status)
        except OSError:
            return False

    def write(self, data: bytes) -> None:
        """Writes to it.

        Raises:
            OSError: It cannot be written, or the script has closed it.
        """
        if not self.is_ours:
            raise OSError(errno.EBADF, "the script has closed it")
        os.write(self.number, data)

    def close(self) -> None:
        """Closes it, unless the script has."""
        if self.is_ours:
            with contextlib.suppress(OSError):  # a file system may report a failed write only here
                os.close(self.number)


def lock(file: Any) -> bool:
    """Locks an open file for this process; returns False where another process holds the lock.

    True without a lock on Windows, and on file systems that have none.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
    return True
