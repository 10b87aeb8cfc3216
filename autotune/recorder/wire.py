"""Lines of JSON to the parent and back."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, BinaryIO


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
            os._exit(1)

    def receive(self) -> dict[str, Any]:
        """The parent's next line; where there will be none, this process ends."""
        line = self._orders.readline() if os.getpid() == self._process_id else b""
        if not line:
            os._exit(1)
        return json.loads(line)  # type: ignore[no-any-return]
