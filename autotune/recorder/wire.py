"""Lines of JSON to the parent and back."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from time import sleep  # by name: the script may replace what `time` holds
from typing import Any, BinaryIO, NoReturn

REST_SECONDS = 900.0
"""Within which a parent kills whoever has told it that it rests. Chosen: longer than any turn of another burst."""
WATCHDOG_SECONDS = 3.0
"""For the watchdog of a parent that has been killed to end the run. Not tuned: it takes a tenth of a second."""


class Wire:
    """A socket to the parent, or what a forked process has of its server's.

    Args:
        channel: The socket.
        number: Of the job that is told about; its events carry it.
        orders: Where the parent's lines come from; the socket itself when None.
    """

    def __init__(self, channel: socket.socket, number: int = 0, orders: BinaryIO | None = None) -> None:
        self.channel = channel
        self.number = number
        self._orders = orders or channel.makefile("rb")
        self._process_id = os.getpid()

    @classmethod
    def to(cls, path: str) -> Wire:
        """The wire to a parent that listens at a path.

        Raises:
            OSError: Nobody listens there.
        """
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.connect(path)
        return cls(channel)

    def send(self, event: str, **content: Any) -> None:
        """Tells an event. A copy in a process that the script forked is silent; a parent that is gone ends this one."""
        if os.getpid() != self._process_id:
            return
        line = json.dumps({"event": event, "number": self.number, **content}, default=str)
        try:
            self.channel.sendall(line.encode() + b"\n")
        except OSError:
            parent_has_gone()

    def end_of(self, number: int, status: int) -> None:
        """Tells that the process of a job has ended, perhaps in the middle of a line."""
        self.channel.sendall(b"\n")
        self.send("exit", number=number, status=status)

    def receive(self) -> dict[str, Any]:
        """The parent's next line; where there will be none, this process ends."""
        if os.getpid() != self._process_id:
            os._exit(1)
        line = self._orders.readline()
        if not line:
            parent_has_gone()
        return json.loads(line)  # type: ignore[no-any-return]

    def rest(self) -> None:
        """Tells that this process has nothing more to do, and waits to be killed with all that it was started by.

        If it ended by itself, a shell script, say, would go on to what follows training. Returns at once in a process
        that the script forked.
        """
        if os.getpid() != self._process_id:
            return
        self.send("rests")
        with contextlib.suppress(OSError):  # a time-out is one, too
            self.channel.settimeout(REST_SECONDS)
            while self.channel.recv(4096):
                pass
        parent_has_gone()


def parent_has_gone() -> NoReturn:
    """Ends this process, after the watchdog had time to kill what would go on where this ends."""
    sleep(WATCHDOG_SECONDS)
    os._exit(1)
