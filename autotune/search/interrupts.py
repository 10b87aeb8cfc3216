"""Handles Ctrl-C, SIGTERM and a closed terminal: the first ends the search cleanly, the second at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from autotune.errors import INTERRUPTED_STATUS
from autotune.sandbox.system import ENDING_SIGNALS

_SHOW_CURSOR = b"\x1b[?25h"
_AT_ONCE = b"\ninterrupted twice: ended at once\n"


class Stop:
    """Asks a search to end cleanly, from another thread or a signal handler."""

    def __init__(self) -> None:
        self._asked = False
        self._held = False
        self._pass_on: Callable[[], None] = lambda: None

    def pass_on_to(self, interrupt: Callable[[], None]) -> None:
        """Calls `interrupt` on a request to stop; at once if there was one already."""
        self._pass_on = interrupt
        if self._asked:
            interrupt()

    @property
    def asked(self) -> bool:
        """Whether the search was asked to end."""
        return self._asked

    def ask(self) -> None:
        """Asks the search to end."""
        self._asked = True
        if not self._held:
            self._pass_on()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While open, only records a request: the work inside is short and must not be interrupted."""
        self._held = True
        try:
            yield
        finally:
            self._held = False


class Interrupts(Stop):
    """While open, passes the first signal on to the code that waits for a burst; a second one ends the process.

    It raises nothing where the signal happens to arrive, so a signal never corrupts a trial or a result that is being
    written. If the process ends at once, its children see their pipe close and end themselves.
    """

    def __init__(self) -> None:
        super().__init__()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread may handle signals
        for number in ENDING_SIGNALS:
            # Ignored signals stay ignored: nohup means that the terminal may close.
            if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._asked and not self._held:
            self._end_at_once(number)
        self.ask()

    def _end_at_once(self, _number: int) -> None:
        """Handles the second signal."""
        try:
            stderr = sys.stderr.fileno()
            if os.isatty(stderr):  # a display that is redrawn in place hides the cursor
                os.write(stderr, _SHOW_CURSOR + _AT_ONCE)
            elif select.select([], [stderr], [], 0)[1]:  # writing to a full pipe would wait
                os.write(stderr, _AT_ONCE)
        finally:
            os._exit(INTERRUPTED_STATUS)


class CallInterrupts(Interrupts):
    """The same around a call in a process that must survive it, such as a notebook's kernel or a script.

    A second signal raises KeyboardInterrupt. A signal that asks the whole process to end does so after the call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ending: int | None = None

    def __exit__(self, *_: object) -> None:
        super().__exit__(*_)
        if self._ending is not None:
            signal.raise_signal(self._ending)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            self._ending = number
        super()._handle(number, _frame)

    def _end_at_once(self, _number: int) -> NoReturn:
        raise KeyboardInterrupt
