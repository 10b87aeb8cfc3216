"""Ctrl-C, SIGTERM and a closed terminal: the first ends the search in good order, the second ends it at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

EXIT_STATUS = 130


class Interrupted(BaseException):
    """A person or the system asked the run to end."""


class Interrupts:
    """While open, the first signal raises `Interrupted` in the main thread; a second one ends the process.

    The child processes of a process that ends so see their pipe close, and end themselves.
    """

    def __init__(self) -> None:
        self.came = False
        self._armed = True
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # SIGHUP does not exist everywhere
            number = getattr(signal, name, None)
            if number is not None:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def disarm(self) -> None:
        """From here on the first signal is only noted: what follows is short and must not be torn."""
        self._armed = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.came:
            os._exit(EXIT_STATUS)
        self.came = True
        if self._armed:
            raise Interrupted
