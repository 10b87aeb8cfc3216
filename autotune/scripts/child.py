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

from autotune.bursts.child import Child, events_in
from autotune.scripts.ranks import Together, free_port, on_port
from autotune.scripts.script import Script

CAUSE_SECONDS = 0.5
"""After a rank's failure others fail of it, and the one that began it may be heard later: the cause is told."""


class ScriptChild(Child):
    """A script that runs with the recorder in it.

    It may start other processes, which run other ones: whoever comes to what the recorder waits for connects.

    Args:
        script: The command.
        orders: What the recorder is to do; the socket and a port for ranks are added.
        environment: Of the command, the recorder's own variables apart.
        folder: Of the run, where the socket lies.
        number: Of the child, for the socket's name.
        ranks: Of its processes, that come to the training loop together, and are spoken to as one.
    """

    def __init__(
        self,
        script: Script,
        orders: Mapping[str, Any],
        environment: dict[str, str],
        folder: Path,
        number: int,
        ranks: int = 1,
    ) -> None:
        path = folder / f"s{number}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._channels: list[socket.socket] = []
        self._ranks = ranks
        self._together = Together(ranks) if ranks > 1 else None
        self._failing = False
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        port = free_port()
        variables = script.environment({**orders, "socket": str(path), "port": port}, environment)
        self._start(
            *on_port(script.command, variables, port), folder, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        self._drain(self._accept, None, self._popen.stdout)

    def send(self, line: str) -> None:
        """Writes a request; it waits until somebody is there to read it."""
        text = line.encode() + b"\n"
        with self._lock:
            if len(self._channels) < self._ranks:
                self._waiting.append(text)
            for channel in self._channels:
                with contextlib.suppress(OSError):
                    channel.sendall(text)

    def is_at_loop(self, pid: int) -> None:
        """To be told which process it is that has come to the training loop: what it starts hangs below it."""
        with contextlib.suppress(psutil.Error):
            self.process = psutil.Process(pid)

    def launchers(self) -> set[int]:
        """Process ids of what started the ranks, and only waits for them; where there are ranks."""
        ranks = self._together.pids if self._together is not None else []
        above: set[int] = set()
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                above |= {parent.pid for parent in psutil.Process(rank).parents()}
        return above - {*ranks}

    def _accept(self, _: Any) -> None:
        """Reads what all tell that connect; the last ones, as many as there are ranks, are who is spoken to."""
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._channels = [*self._channels, channel][-self._ranks :]
                for text in self._waiting:
                    with contextlib.suppress(OSError):
                        channel.sendall(text)
                teller = len(self._channels) - 1
                if len(self._channels) == self._ranks:
                    self._waiting.clear()
            threading.Thread(target=self._read, args=(channel, teller), daemon=True).start()

    def _read(self, channel: socket.socket, teller: int) -> None:
        with contextlib.suppress(OSError), channel.makefile("rb") as lines:
            if self._together is None:
                self._read_events(lines)
            else:
                self._read_rank(lines, teller, self._together)
        self._events.put({"event": "hung up"})

    def _read_rank(self, lines: Any, teller: int, together: Together) -> None:
        for event in events_in(lines):
            with self._lock:
                told = together.heard(teller, event)
                if told is not None:
                    self._events.put(told)
                self._fail_later(together)
        with self._lock:
            together.left(teller)
            self._fail_later(together)

    def _fail_later(self, together: Together) -> None:
        """Where a rank has failed, the others would wait for it: ends the script once the cause can be told."""
        if not together.has_failed or self._failing:
            return
        self._failing = True

        def fail() -> None:
            with self._lock:
                self._events.put({"number": together.number, **together.failure()})
            with contextlib.suppress(OSError):
                self._popen.kill()

        timer = threading.Timer(CAUSE_SECONDS, fail)
        timer.daemon = True
        timer.start()

    def _hang_up(self) -> None:
        for end in (self._listener, *self._channels):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()
