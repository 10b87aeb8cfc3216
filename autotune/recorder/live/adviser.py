"""Plans candidates for a training: the command that has started its script, over a socket, as long as it is there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import Any

from ...sandbox.system import Held

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)  # a script may have given SIGPIPE back its deadly meaning
SEND_SECONDS = 0.2
"""A parent that does not take a line within this is left alone from then on: training does not wait for it."""


class Parent:
    """The command's side, at a socket's path; where no process listens, there are no candidates.

    The first message connects, so that processes of the script that never train do not.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = os.getpid()
        self._channel: socket.socket | None = None
        self._held: Held | None = None  # the channel's descriptor
        self._received = b""
        self._is_gone = False

    def ask(self, facts: dict[str, Any]) -> None:
        """Asks for candidates."""
        self.tell("began", pid=self._process, **facts)

    def answer(self) -> list[dict[str, Any]] | None:
        """The candidates, once they are known; none after the command has ended."""
        self._look_at_channel()
        if self._is_gone or self._channel is None:
            return []
        try:
            self._channel.setblocking(False)
            while chunk := self._channel.recv(65536):
                self._received += chunk
            self._leave()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._leave()
        finally:
            if self._channel is not None:
                self._channel.settimeout(SEND_SECONDS)
        line, newline, _ = self._received.partition(b"\n")
        if not newline:
            return [] if self._is_gone else None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return list(json.loads(line)["candidates"])
        return []

    def tell(self, event: str, **content: Any) -> None:
        """Reports an event."""
        self._look_at_channel()
        if self._is_gone or os.getpid() != self._process:
            return
        try:
            if self._channel is None:
                self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._held = Held(self._channel.fileno())
                self._channel.settimeout(SEND_SECONDS)
                self._channel.connect(self._path)
            self._channel.sendall(json.dumps({"event": event, **content}, default=str).encode() + b"\n", NO_SIGNAL)
        except OSError:
            self._leave()

    def _look_at_channel(self) -> None:
        """Leaves the channel alone if the script has closed it: the descriptor may be that of a file of its own now."""
        channel = self._channel
        if channel is not None and self._held is not None and not self._held.is_ours:
            channel.detach()
            self._channel, self._is_gone = None, True

    def _leave(self) -> None:
        channel, self._channel, self._is_gone = self._channel, None, True
        if channel is not None:
            channel.close()
