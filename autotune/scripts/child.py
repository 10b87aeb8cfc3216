"""A script's processes, seen from their parent: what it tells comes through a socket, what it prints is kept apart."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from autotune.bursts.child import Child
from autotune.scripts.script import Script


class ScriptChild(Child):
    """A script that runs with the recorder in it.

    It may start other processes, which run other ones: whoever comes to what the recorder waits for connects.

    Args:
        script: The command.
        orders: What the recorder is to do; the socket is added.
        environment: Of the command, the recorder's own variables apart.
        folder: Of the run, where the socket lies.
        number: Of the child, for the socket's name.
    """

    def __init__(
        self, script: Script, orders: Mapping[str, Any], environment: dict[str, str], folder: Path, number: int
    ) -> None:
        path = folder / f"s{number}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._channel: socket.socket | None = None
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        variables = script.environment({**orders, "socket": str(path)}, environment)
        self._start(list(script.command), variables, folder, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        self._drain(self._accept, None, self._popen.stdout)

    def send(self, line: str) -> None:
        """Writes a request; it waits until somebody is there to read it."""
        text = line.encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            if self._channel is None:
                self._waiting.append(text)
            else:
                self._channel.sendall(text)

    def is_at_loop(self, pid: int) -> None:
        """To be told which process it is that has come to the training loop: what it starts hangs below it."""
        with contextlib.suppress(psutil.Error):
            self.process = psutil.Process(pid)

    def _accept(self, _: Any) -> None:
        """Reads what all tell that connect; the last one is who is spoken to."""
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            with self._lock, contextlib.suppress(OSError):
                self._channel = channel
                for text in self._waiting:
                    channel.sendall(text)
                self._waiting.clear()
            threading.Thread(target=self._read, args=(channel,), daemon=True).start()

    def _read(self, channel: socket.socket) -> None:
        with contextlib.suppress(OSError), channel.makefile("rb") as lines:
            self._read_events(lines)
        self._events.put({"event": "hung up"})

    def _hang_up(self) -> None:
        for end in (self._listener, self._channel):
            with contextlib.suppress(OSError):
                if end is not None:
                    end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                if end is not None:
                    end.close()
