"""Runs scripts in forks of one process that has imported torch.

A script in a process of its own imports torch and its compiler first, which takes seconds. The recorder enters a fork
as it enters a process, by `sitecustomize`, but torch is already there. Test in a process of its own what depends on the
order of these two, on variables that torch reads when it is imported, or on the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from autotune.knobs.registry import READS
from autotune.sandbox.inside import KEPT
from autotune.scripts.facts import require_trainable, why_not
from autotune.scripts.ranks import free_port
from autotune.scripts.script import QUIET, Script
from autotune.scripts.seen import SeenScript

LOOK_SECONDS = 60.0
SERVER = """
import atexit, gc, json, os, sys, threading, types
import torch, torch._dynamo

gc.freeze()
for line in sys.stdin:
    orders = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print("process", child, flush=True)
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

os.chdir(orders["folder"])
os.environ.clear()
os.environ.update(orders["environment"])
for descriptor, path in enumerate(orders["streams"]):
    os.dup2(os.open(path, os.O_RDWR), descriptor)
path = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
sys.argv, sys.path = orders["words"], [*path, *sys.path[1:]]
try:
    import sitecustomize
except ImportError:
    pass
sys.path.insert(0, orders["folder"])
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__file__ = os.path.abspath(sys.argv[0])
with open(main.__file__) as file:
    code = compile(file.read(), main.__file__, "exec")
exec(code, main.__dict__)
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""
"""`gc.freeze` keeps garbage collection and searches for models out of torch's own objects; `os._exit` leaves torch as
it is at the end. Without them, each fork would copy the memory that it shares, which takes 1.5 seconds."""


class Forked:
    """A process that runs scripts, one after the other, each in a fork of its own."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._server:  # which closes the pipes and waits
            self._server.kill()  # it would not see the end of its input: loaders' workers of tests may hold the pipe

    def run(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str] = os.environ
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script to its end.

        Args:
            words: Its file, relative to the folder, and its arguments.
            folder: Where it runs.
            environment: All of its variables.
        """
        self._begin(words, folder, environment)
        return self._end(words, folder)

    def look(self, words: Sequence[str], folder: Path, seconds: float = LOOK_SECONDS) -> SeenScript:
        """Looks at a script that trains in one process. There is no sandbox: what it writes stays.

        Args:
            words: Its file, relative to the folder, and its arguments.
            folder: Where it runs.
            seconds: The time that the look is said to have.

        Raises:
            WorkloadError: It does not train, or not in a way that can be tuned.
        """
        path = folder / "parent"
        script = Script((sys.executable, *words))
        with socket.socket(socket.AF_UNIX) as parent:
            parent.settimeout(LOOK_SECONDS)
            parent.bind(str(path))
            parent.listen()
            (folder / KEPT).touch()
            orders = {
                "role": "look", "reads": READS, "socket": str(path), "shared": str(folder), "port": free_port(),
                "seconds": seconds, "sandbox": {"any_network": True, "mirror": None, "row": "none"},
            }  # fmt: skip
            child = self._begin(words, folder, script.environment(orders, {**os.environ, **QUIET}))
            try:
                connection, _ = parent.accept()
                with connection, connection.makefile() as lines:
                    connection.settimeout(LOOK_SECONDS)
                    event = next(one for one in map(json.loads, lines) if one["event"] in {"result", "ended"})
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)  # once it has been seen, it waits for that
                ended = self._end(words, folder)
        path.unlink()
        if event["event"] == "ended":
            raise why_not([event], ended.stderr, script, None)
        seen = SeenScript.of(event["value"], processes=1)
        require_trainable(seen, script)
        return seen

    def _begin(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
        orders = {
            "words": words, "folder": str(folder), "environment": dict(environment),
            "streams": [os.devnull, str(folder / "out.txt"), str(folder / "err.txt")],
        }  # fmt: skip
        for name in ("out.txt", "err.txt"):
            (folder / name).write_text("")
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(orders) + "\n")
        self._server.stdin.flush()
        return self._answer("process")

    def _end(self, words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        status = self._answer("status")
        out, err = ((folder / name).read_text() for name in ("out.txt", "err.txt"))
        return subprocess.CompletedProcess(words, status, out, err)

    def _answer(self, expected: str) -> int:
        assert self._server.stdout is not None
        kind, number = self._server.stdout.readline().split()
        assert kind == expected  # a status must never be taken for a process to kill
        return int(number)
