"""Starts a command in a sandbox, as the first process of a script is started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

from autotune.sandbox.protection import Protection
from autotune.scripts import Script

LOOP: dict[str, object] = {"loaders": [], "models": [], "device": "cpu"}
"""Of no training: the recorder changes nothing."""


def start(
    words: list[str],
    protection: Protection,
    name: str,
    printed: IO[str] | int = subprocess.PIPE,
    *,
    forks: bool = False,
    looks: bool = False,
) -> subprocess.Popen[str]:
    """A process in a layer, with the recorder in its Python."""
    orders = {"role": "launch", "loop": LOOP, "changes": {}, "sandbox": protection.orders(name)}
    environment = Script((words[0],)).environment(orders, {**os.environ, "TMPDIR": str(protection.shared.parent)})
    ours, theirs = socket.socketpair()
    command = protection.command(words, name, theirs.fileno(), forks=forks)
    with ours, theirs:
        process = subprocess.Popen(
            command, env=environment, pass_fds=(theirs.fileno(),), stdin=-1, stdout=printed, stderr=printed, text=True
        )
        theirs.close()
        protection.attend(name, process.pid, ours, looks=looks, forks=forks)
    return process


def run(words: list[str], protection: Protection, name: str, *, looks: bool = False) -> tuple[int, str]:
    """The same to its end, whatever it leaves running: its exit status, and what it printed."""
    with tempfile.TemporaryFile("w+") as printed:
        with start(words, protection, name, printed, looks=looks) as process:
            process.wait(60)
        printed.seek(0)
        return process.returncode, printed.read()


def python(code: str, protection: Protection, name: str, *, looks: bool = False) -> str:
    """What code prints that ends as it should."""
    status, printed = run([sys.executable, "-c", code], protection, name, looks=looks)
    assert status == 0, printed
    return printed.strip()


def begun(folder: Path, notes: list[str] | None = None, **options: object) -> Protection:
    """The protection of a run in a folder, which has begun."""
    folder.mkdir(exist_ok=True)
    protection = Protection(folder, (notes if notes is not None else []).append, **options)  # type: ignore[arg-type]
    protection.begin()
    return protection
