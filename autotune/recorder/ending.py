"""Ending a burst of a script: by an exception that ``except Exception`` does not stop, then by leaving the process."""

from __future__ import annotations

import _sitebuiltins
import atexit
import functools
import multiprocessing
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import util
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ..timing.failing import NotSavedError, causes_of, outcome_of, sentence_of
from ..torch_settings.undo import nothing

if TYPE_CHECKING:
    from ..timing.wire import Wire

FIRST = 1000
"""Priority of our exit handler, above those of `multiprocessing`'s own."""
GRACE_SECONDS = 3.0
"""Time for a script's ``finally`` blocks. Not tuned."""
FIRST_STEPS, TRAINING, BEYOND_EPOCH = "taking its first steps", "training", "training beyond an epoch"
"""What a script is doing. The last: it has drawn more than its own epoch holds, which it cannot know."""
_NOT_FINITE = re.compile(r"\b(nan|inf)\b|finite", re.IGNORECASE)
"""Matches the error of a script that checks its loss."""


class BurstEnded(BaseException):
    """Ends the burst. The script must not catch it."""


_ended = [False]
_resting: list[Wire] = []
_statuses: list[Any] = [0]
_caught: list[BaseException] = []
"""The error that the script had caught when it left by `sys.exit` or `exit`: Hydra, say, prints errors itself."""


def has_ended() -> bool:
    """Whether the burst is over while the script still runs: it has caught `BurstEnded`."""
    return _ended[0]


def rest_in_the_end(wire: Wire) -> None:
    """Keeps this process from ending by itself: its launcher would believe that training has finished."""
    _resting[:] = [wire]


def leave() -> NoReturn:
    """Ends this process, or waits until the parent ends it."""
    if _resting:
        _resting[0].rest()
    os._exit(0)


def give_up(wire: Wire, error: BaseException) -> NoReturn:
    """Ends the script when the recorder itself fails: it would train on, unprotected. Call it in ``except``."""
    traceback.print_exc()
    message = f"autotune's recorder failed, and not the script: {sentence_of(error)}"
    wire.send("ended", error=message, steps=0, forwards=0, loaders=0, seen=None)
    sys.stderr.flush()
    os._exit(1)


def end_burst() -> NoReturn:
    """Leaves the script. Its ``finally`` blocks have a moment to run, unless it has caught the first exception.

    Raises:
        BurstEnded: Always.
    """
    if _ended[0]:
        leave()
    _ended[0] = True
    timer = threading.Timer(GRACE_SECONDS, leave)
    timer.daemon = True
    timer.start()
    raise BurstEnded


def report_end(wire: Wire, doing: list[str]) -> None:
    """Reports to the parent when the script ends by itself: by an error, or because it has finished.

    Args:
        wire: To the parent.
        doing: Its last item says what the script is doing.
    """

    def failed(error: BaseException) -> None:
        reloads = any(isinstance(cause, NotSavedError) for cause in causes_of(error))
        if (reloads and doing[-1] in {TRAINING, BEYOND_EPOCH}) or (
            doing[-1] == BEYOND_EPOCH and may_be_of_length(error)
        ):
            wire.send("trained", error=sentence_of(error))
        else:
            wire.failure(*outcome_of(error, _device()))

    def report(error: BaseException | None) -> None:
        status = _statuses[-1]
        if error is not None:
            failed(error)
        elif status in {None, 0} and doing[-1] in {FIRST_STEPS, TRAINING, BEYOND_EPOCH}:
            wire.send("trained")
        else:
            how = "" if status in {None, 0} else f", by sys.exit({status!r})"
            wire.failure("crashed", f"the script ended while it was {doing[-1]}{how}")

    at_end(report, leave)


def at_end(report: Callable[[BaseException | None], None], then: Callable[[], None] = nothing) -> None:
    """Calls two functions when the script ends by itself; where a burst has ended, the process is left instead.

    Args:
        report: Called with the error that ends the script, before Python prints it; None where it ends without one.
        then: Called last.
    """
    former = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if has_ended():
            leave()
        report(error)
        former(kind, error, trace)
        sys.stderr.flush()
        then()

    def ended() -> None:
        if has_ended():
            leave()
        report(last_error())  # another hook replaced ours, or no hook was called
        then()

    note_exits()
    sys.excepthook = hook
    atexit.register(ended)
    if multiprocessing.parent_process() is not None:  # one that `multiprocessing` has started
        util.Finalize(None, ended, exitpriority=FIRST)


def note_exits() -> None:
    """Notes the status with which the script calls `sys.exit`, `exit` or `quit`, and the error that it has caught then.

    A plain ``raise SystemExit(1)`` leaves no trace in Python.
    """
    original, own_call = sys.exit, _sitebuiltins.Quitter.__call__

    def note(status: Any) -> None:
        _statuses.append(status)
        error = sys.exc_info()[1]
        _caught[:] = [error] if error is not None and status not in (None, 0) else []

    @functools.wraps(original)
    def leaving(status: Any = None, /) -> NoReturn:
        note(status)
        original(status)

    @functools.wraps(own_call)
    def quitting(self: Any, code: Any = None) -> Any:
        note(code)
        return own_call(self, code)

    sys.exit = leaving
    _sitebuiltins.Quitter.__call__ = quitting  # type: ignore[method-assign]


def last_error() -> BaseException | None:
    """The error that ends the script, or one of its processes; None if it ends without one.

    Python keeps it before it calls any hook. It may also be the error that the script had caught when it left with a
    failure status.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    error = error or next(iter(_caught), None)
    if isinstance(error, SystemExit) and error.code not in {None, 0}:
        error = error.__context__  # as torch.multiprocessing ends a process that failed
    is_error = isinstance(error, Exception) and not _is_caused_by_end(error)
    return error if is_error else None


def _device() -> str:
    """The kind of device that the script has opened."""
    import torch

    return "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]


def may_be_of_length(error: BaseException) -> bool:
    """Whether an error may come from drawing beyond the script's own epoch.

    A schedule has no step left, an array no room, another iterator no batch. Excluded are torch's RuntimeErrors about
    devices, workers and other ranks, and a script's own check for a loss that is not finite.
    """
    if isinstance(error, StopIteration) or isinstance(error.__cause__, StopIteration):  # a generator's RuntimeError
        return True
    is_of_system = any(isinstance(cause, RuntimeError | OSError | ArithmeticError) for cause in causes_of(error))
    return (
        not is_of_system
        and outcome_of(error, _device())[0] == "crashed"
        and _NOT_FINITE.search(sentence_of(error)) is None
    )


def _is_caused_by_end(error: BaseException) -> bool:
    """Whether the script raised an error only because the burst was ending."""
    seen = error.__context__
    for _ in range(20):
        if seen is None or isinstance(seen, BurstEnded):
            return seen is not None
        seen = seen.__context__
    return False
