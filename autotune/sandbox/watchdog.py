"""Ends a script's processes, and removes the run's temporary folder, when autotune is killed and cannot do so itself.

The watchdog runs in its own process and session, and needs only the standard library. Its standard input ends when
autotune ends. It restores nothing: there is nothing to restore.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from .process_marks import marked
from .view import remove_folder

DONE = b"done\n"
"""The line that autotune writes when it ends normally."""
ENDING_SECONDS = 5.0
"""Time for the script's processes to disappear after SIGKILL. Not tuned: they take milliseconds."""


def main() -> None:
    """Waits until autotune has ended, then cleans up. Arguments: the run's temporary folder, and that of its layers."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if DONE in sys.stdin.buffer.readlines():
        return
    run, deadline = sys.argv[1], time.monotonic() + ENDING_SECONDS
    while (pids := marked(run)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    for folder in sys.argv[1:]:
        remove_folder(folder)
