"""Workers that a loader gets though the script gave it none: the script must see no difference but speed.

Torch's workers hand over tensors in shared memory, of which each is an open file here as long as the script keeps it.
And a forked worker has the script's own signal handlers, which may save a checkpoint. What reading raises in a worker,
torch makes anew from a message here: of another class where its ``__init__`` takes anything else, without attributes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import reductions
from torch.utils.data._utils import worker

from ..sandbox.system import WINDOWS, signals

SMALLEST_SHARE = 0.5
"""A tensor that is a smaller part of its memory is sent as a copy, rather than with all of it. Not tuned."""
MOST_BYTES = 2**20
"""Most bytes of an exception that is sent as it is. Not tuned."""
MOST_CAUSES = 10
"""Longest chain of exceptions, each the cause of the one before, that is sent."""
_KEPT = signals("SIGTERM", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGCHLD")
"""Signals that torch's own handlers hear in workers, and those that only a worker's own timers and children send."""


def as_added(then: Callable[[int], None] | None) -> Callable[[int], None]:
    """A ``worker_init_fn`` for a worker that the script does not expect; calls `then`, the loader's own, after it."""
    return functools.partial(_begin, then)


def _begin(then: Callable[[int], None] | None, number: int) -> None:
    _ignore_signals()
    ForkingPickler.register(torch.UntypedStorage, _sent_storage)
    ForkingPickler.register(torch.Tensor, _sent_tensor)
    worker.ExceptionWrapper = Raised  # type: ignore[attr-defined]
    if then is not None:
        then(number)


class Raised(ExceptionWrapper):
    """What reading has raised in a worker. It is raised here as it was; the worker's traceback is its first cause."""

    def __init__(self, exc_info: Any = None, where: str = "in background") -> None:
        kind, error, trace = exc_info or sys.exc_info()
        super().__init__((kind, error, trace), where)  # type: ignore[no-untyped-call]
        # Torch pickles it in a thread of the worker's, where a failure would let the training wait forever.
        self.exc_type = next(base for base in type(error).__mro__ if _can_be_pickled(base))
        self._chain: list[bytes] = []
        while error is not None and len(self._chain) < MOST_CAUSES and (packed := _packed(error)) is not None:
            self._chain.append(packed)
            error = error.__cause__

    def reraise(self) -> None:
        """Raises it; in torch's way, if it cannot be sent."""
        chain: list[BaseException] = []
        with contextlib.suppress(Exception):
            chain = [pickle.loads(packed) for packed in self._chain]  # noqa: S301 - of our own worker
        if not chain:
            super().reraise()  # type: ignore[no-untyped-call]
        first = RuntimeError(f"Caught {self.where}.\nOriginal {self.exc_msg}")
        for error, cause in zip(chain, [*chain[1:], first], strict=True):
            error.__cause__ = cause
        raise chain[0]


def _packed(error: BaseException) -> bytes | None:
    """Pickles an exception, also one whose ``__init__`` takes other arguments than it passes on; None if it fails."""
    bare = _Bare(type(error), error.args, vars(error))
    for way in error, bare:
        with contextlib.suppress(Exception):
            pickle.Pickler(file := _Bounded()).dump(way)
            again = pickle.loads(packed := file.getvalue())  # noqa: S301 - made here
            if type(again) is type(error) and (way is bare or (again.args, str(again)) == (error.args, str(error))):
                return packed
    return None


class _Bounded(io.BytesIO):
    """A file in memory that takes no exception which holds a data set, say."""

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > MOST_BYTES:
            raise OverflowError
        return super().write(content)


class _Bare(NamedTuple):
    """An exception that is made without its ``__init__``."""

    kind: type[BaseException]
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_bare, tuple(self)


def _made_bare(kind: type[BaseException], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(attributes)
    return error


def _can_be_pickled(kind: type) -> bool:
    try:
        pickle.dumps(kind)
    except Exception:  # noqa: BLE001 - a class within a function
        return False
    return True


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """While open, no handler of the script's runs; a worker that is started meanwhile never runs one."""
    if WINDOWS:  # which has no such mask, and sends signals to one process
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*_left_to_the_script(), signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_signals() -> None:
    """Ignores what a terminal, or a scheduler, sends to all processes: torch ends workers by other means."""
    numbers = _left_to_the_script()
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
    if not WINDOWS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*numbers, signal.SIGTERM])


def _left_to_the_script() -> list[int]:
    """The signals for which there is a handler in Python, without those that a worker may need."""
    return [number for number in signal.valid_signals() if number not in _KEPT and callable(signal.getsignal(number))]


def _sent_storage(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    """How memory is pickled: by torch's own way to share it, and a copy on the other side."""
    return _copied, reductions.reduce_storage(storage)  # type: ignore[no-untyped-call]


def _copied(rebuild: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return rebuild(*arguments).clone()


def _sent_tensor(tensor: torch.Tensor) -> Any:
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_nested
    if is_plain and not tensor.requires_grad and tensor.nbytes < SMALLEST_SHARE * tensor.untyped_storage().nbytes():
        tensor = tensor.clone()
    return reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
