"""Runs a command in the sandbox of bursts, as a child: ``python -m benchmarks.in_sandbox WRITABLE COMMAND…``."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.sandbox.protection import Protection

NAME = "start"


def started(words: Sequence[str], protection: Protection, name: str = NAME) -> tuple[subprocess.Popen[bytes], float]:
    """A command in a sandbox, and the seconds until it was there."""
    began = time.perf_counter()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = protection.command(words, name, theirs.fileno(), forks=False)
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
        theirs.close()
        protection.attend(name, process.pid, ours, looks=False, forks=False)
    return process, time.perf_counter() - began


def main() -> int:
    """Runs it to its end."""
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        protection = Protection(Path(folder), lambda _: None, [Path(sys.argv[1])])
        protection.begin()
        process, _ = started(sys.argv[2:], protection)
        status = process.wait()
        protection.drop(NAME)
        protection.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
