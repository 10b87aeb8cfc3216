"""Marks all processes that a script starts, so that they can always be found.

The mark is a resource limit that no process reaches, with a number that is unique to the run. Children inherit it, also
in a new environment and session, and after their parents have ended. Works only on Linux; elsewhere nothing is marked.
"""

from __future__ import annotations

import contextlib
import os
import zlib  # importing hashlib would take a tenth of the start-up time

from .system import LINUX, resource, stat_of

_LEAST = 2**61
"""Microseconds for which a process with real-time scheduling may compute without a pause: 70,000 years."""


def mark(folder: str) -> None:
    """Marks this process, and all processes that it will start.

    Args:
        folder: The run's temporary folder, which no other run shares.
    """
    if LINUX:
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        with contextlib.suppress(OSError, ValueError):  # an administrator has set a limit
            resource.setrlimit(resource.RLIMIT_RTTIME, (_number_of(folder), hard))


def is_marked(pid: int, folder: str) -> bool:
    """Whether a process is alive and was started in a run."""
    with contextlib.suppress(OSError):  # it has ended, or belongs to another user
        if LINUX and resource.prlimit(pid, resource.RLIMIT_RTTIME)[0] == _number_of(folder):
            return stat_of(pid)[0] not in {"Z", "X"}  # a zombie waits for its parent
    return False


def marked(folder: str) -> list[int]:
    """Ids of the processes that were started in a run and are alive, without this one."""
    pids = [int(name) for name in (os.listdir("/proc") if LINUX else ()) if name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and is_marked(pid, folder)]


def _number_of(folder: str) -> int:
    return _LEAST + zlib.crc32(os.fsencode(folder))
