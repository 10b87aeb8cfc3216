"""Ctrl-C, SIGTERM and a closed terminal: the first ends the search in good order, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

INTERRUPTED_STATUS = 130
_SHOW_CURSOR = b"\x1b[?25h"


class Interrupts:
    """While open, the first signal is passed on to whoever waits for a burst; a second one ends the process.

    Nothing is raised where the signal happens to strike, so that neither a trial nor a result is torn while it is
    written down. The child processes of a process that ends at once see their pipe close, and end themselves.
    """

    def __init__(self) -> None:
        self._received = False
        self._held = False
        self._pass_on: Callable[[], None] = lambda: None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # SIGHUP does not exist everywhere
            number = getattr(signal, name, None)
            # What is ignored already stays so: nohup means that the terminal may close.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def pass_on_to(self, interrupt: Callable[[], None]) -> None:
        """Calls `interrupt` at the first signal, from its handler; at once if there was one already."""
        self._pass_on = interrupt
        if self._received:
            interrupt()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While open, even a second signal is only noted: what is done is short, and must not be cut short."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._received and not self._held:
            with contextlib.suppress(OSError, ValueError):  # a display that is redrawn in place hides the cursor
                if sys.stderr.isatty():
                    os.write(sys.stderr.fileno(), _SHOW_CURSOR)
            os._exit(INTERRUPTED_STATUS)
        self._received = True
        if not self._held:
            self._pass_on()
