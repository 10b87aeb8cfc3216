"""Starts a command in a sandbox, as the first process of a script is started."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from autotune.sandbox.protection import Protection
from autotune.scripts import Script

LOOP: dict[str, object] = {"loaders": [], "models": [], "device": "cpu"}
"""Of no training: the recorder changes nothing."""

FORKS = """
import json, os, sys, traceback
sys.modules.setdefault("_autotune.sandbox", None)
from _autotune.sandbox.inside import enter_layer
print("ended 0", flush=True)
for line in sys.stdin:
    layer, code = json.loads(line)
    if not (child := os.fork()):
        try:
            enter_layer(layer)
            exec(code, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs code in forks, each in its own layer, as a script's forkserver runs jobs."""


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
            command, env=environment, pass_fds=(theirs.fileno(),), stdin=-1, stdout=printed, stderr=-2, text=True
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


@contextlib.contextmanager
def forking(code: str, protection: Protection) -> Iterator[Callable[[str, str], tuple[int, str]]]:
    """A start of code: yields what runs other code in a fork with a layer of that name, and returns what `run` does."""
    with start([sys.executable, "-c", code + FORKS], protection, "server", forks=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        into, out = server.stdin, server.stdout

        def ended() -> tuple[int, str]:
            printed = ""
            while not (line := out.readline()).startswith("ended "):
                assert line, printed
                printed += line
            return int(line.split()[1]), printed

        def fork(text: str, name: str) -> tuple[int, str]:
            into.write(json.dumps([protection.prepare_fork(name, "server"), text]) + "\n")
            into.flush()
            return ended()

        assert ended()[0] == 0
        yield fork
        into.close()


def begun(folder: Path, notes: list[str] | None = None, **options: object) -> Protection:
    """The protection of a run in a folder, which has begun."""
    folder.mkdir(exist_ok=True)
    protection = Protection(folder, (notes if notes is not None else []).append, **options)  # type: ignore[arg-type]
    protection.begin()
    return protection
