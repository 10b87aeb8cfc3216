"""The watch-dog of a run: it reverts a script's files when the parent is killed and cannot do it.

A process of its own, in a session of its own, with the standard library alone. Its standard input ends when the parent
does, however that ends; on it come the paths that are the parent's own, and in the end that all is done.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import sys
import time

from .marks import marked
from .reverting import LOCK, locked, revert, sentence

DONE = b"done\n"
"""What it is told in the end by a parent that has put all back itself."""
ENDING_SECONDS = 5.0
"""For the script's processes to go. Chosen."""


def main() -> None:
    """Waits until whoever started it has gone, and does what he has not done himself.

    Its arguments: the journal's folder, and the run's temporary one, which all processes of the script have in their
    environment.
    """
    folder, run = sys.argv[1:3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = sys.stdin.buffer.readlines()
    if DONE in lines:
        return
    _end_run(run, folder)
    with open(os.path.join(folder, LOCK), "a") as lock:
        locked(lock)  # whatever it says: whoever had it is dead
        spared = tuple(line.decode("utf-8", "surrogateescape").rstrip("\n") for line in lines)
        told = sentence(revert(folder, "end", spared), ", ".join)
    if told is not None:
        with contextlib.suppress(OSError):
            print(f"autotune was killed; {told}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    for place, _, _ in os.walk(run):
        with contextlib.suppress(OSError):
            os.chmod(place, stat.S_IRWXU)
    shutil.rmtree(run, ignore_errors=True)


def _end_run(run: str, folder: str) -> None:
    """Kills all processes that carry a run's marks; where the system does not list them, they get time to end."""
    deadline, mark = time.monotonic() + ENDING_SECONDS, b"AUTOTUNE_RUN=" + os.fsencode(run)
    while time.monotonic() < deadline:
        found = marked(folder)
        for process in os.listdir("/proc") if os.path.isdir("/proc") else []:
            with contextlib.suppress(OSError):
                if process.isdigit() and int(process) != os.getpid():
                    with open(f"/proc/{process}/environ", "rb") as told:
                        if mark in told.read().split(b"\0"):
                            found.append(int(process))
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found and os.path.isdir("/proc"):
            return
        time.sleep(0.05)
