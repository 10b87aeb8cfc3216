"""Marks all processes that a script starts, so that they are found wherever they have gone.

A limit of the kernel's that nobody reaches, of a number that no other run has: whoever is started inherits it, in an
environment and a session of its own, and also when its parents have gone. On Linux alone; elsewhere nothing is marked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys

_LEAST = 2**61
"""Microseconds for which a process that is scheduled in real time may compute without a pause: 70,000 years."""


def mark(folder: str) -> None:
    """Marks this process, and with it all that it will start.

    Args:
        folder: Where the journal of the run lies, which no other run shares.
    """
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        with contextlib.suppress(OSError, ValueError):  # whoever started us has a limit in earnest
            resource.setrlimit(resource.RLIMIT_RTTIME, (_number_of(folder), hard))


def is_marked(pid: int, folder: str) -> bool:
    """Whether a process lives that was started in a run, by whomever."""
    if sys.platform == "linux":
        import resource

        with contextlib.suppress(OSError):  # it has gone, or is another user's
            if resource.prlimit(pid, resource.RLIMIT_RTTIME)[0] == _number_of(folder):
                with open(f"/proc/{pid}/stat", "rb") as told:
                    return told.read().rpartition(b") ")[2][:1] not in b"ZX"  # one that has ended waits for its parent
    return False


def marked(folder: str) -> list[int]:
    """Ids of the processes that were started in a run and live; this one apart."""
    if sys.platform != "linux":
        return []
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and is_marked(pid, folder)]


def _number_of(folder: str) -> int:
    return _LEAST + int.from_bytes(hashlib.sha256(os.fsencode(folder)).digest()[:6], "big")
