"""Lines of JSON to the parent and back."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from json import dumps, loads  # by name: the user's code may replace what `json` holds
from time import sleep  # by name: the script may replace what `time` holds
from typing import Any, BinaryIO, NoReturn

REST_SECONDS = 900.0
"""Time in which a parent kills a process that has reported ``rests``: longer than any turn of another burst."""
WATCHDOG_SECONDS = 3.0
"""Time for the watchdog of a killed parent to end the run. It takes a tenth of a second. Not tuned."""


class Reporter:
    """Writes events to the parent, one line of JSON each.

    It reports only for the process that made it: a copy in a process that the user's code forked is silent.
    """

    def __init__(self, write: Callable[[bytes], object], number: int = 0) -> None:
        self.number = number
        self._write = write
        self._process_id = os.getpid()

    def send(self, event: str, **content: Any) -> None:
        """Writes one event."""
        self.pass_on(self._line(event, **content))

    def phase(self, name: str) -> None:
        """Reports the job's phase."""
        self.send("phase", phase=name)

    def failure(self, outcome: str, reason: str, **more: Any) -> None:
        """Reports an outcome other than ok."""
        self.send("failure", outcome=outcome, reason=reason[:2000], **more)

    def end_of(self, number: int, status: int) -> None:
        """Reports that the process of a job has ended, perhaps in the middle of a line."""
        self.pass_on(b"\n" + self._line("exit", status=status, number=number))

    def pass_on(self, line: bytes) -> None:
        """Writes a finished line."""
        if os.getpid() == self._process_id:
            self._write(line + b"\n")

    def _line(self, event: str, **content: Any) -> bytes:
        return dumps({"event": event, "number": self.number} | content, default=str).encode()


class Wire(Reporter):
    """A socket to the parent, which a forked process shares with its server.

    Args:
        channel: The socket.
        number: Number of the job.
        orders: Stream of the parent's lines; None for the socket itself.
    """

    def __init__(self, channel: socket.socket, number: int = 0, orders: BinaryIO | None = None) -> None:
        def write(line: bytes) -> None:
            try:
                channel.sendall(line)
            except OSError:
                parent_has_gone()

        super().__init__(write, number)
        self.channel = channel
        self._orders = orders or channel.makefile("rb")

    @classmethod
    def to(cls, path: str) -> Wire:
        """The wire to a parent that listens at a path.

        Raises:
            OSError: No process listens there.
        """
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.connect(path)
        return cls(channel)

    def receive(self) -> dict[str, Any]:
        """The parent's next line; at the end of lines, this process ends."""
        if os.getpid() != self._process_id:
            os._exit(1)
        line = self._orders.readline()
        if not line:
            parent_has_gone()
        return loads(line)  # type: ignore[no-any-return]

    def rest(self) -> None:
        """Reports that this process has finished, and waits to be killed together with its launchers.

        If it ended by itself, a shell script, say, would continue after its training. Returns at once in a process that
        the script forked.
        """
        if os.getpid() != self._process_id:
            return
        self.send("rests")
        with contextlib.suppress(OSError):  # including a time-out
            self.channel.settimeout(REST_SECONDS)
            while self.channel.recv(4096):
                pass
        parent_has_gone()


def parent_has_gone() -> NoReturn:
    """Ends this process after the watchdog had time to kill processes that wait for its end."""
    sleep(WATCHDOG_SECONDS)
    os._exit(1)
