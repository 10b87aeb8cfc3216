"""Workers that a loader gets though the script gave it none: the script must see no difference but speed.

Torch's workers hand over tensors in shared memory, of which each is an open file here as long as the script keeps it.
And a forked worker has the script's own signal handlers, which may save a checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from ..sandbox.system import WINDOWS

SMALLEST_SHARE = 0.5
"""A tensor that is a smaller part of its memory is sent as a copy, rather than with all of it. Not tuned."""
_KEPT = ("SIGTERM", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGCHLD")
"""Signals that torch's own handlers hear in workers, and those that only a worker's own timers and children send."""


def as_added(then: Callable[[int], None] | None) -> Callable[[int], None]:
    """A ``worker_init_fn`` for a worker that the script does not expect; calls `then`, the loader's own, after it."""
    return functools.partial(_begin, then)


def _begin(then: Callable[[int], None] | None, number: int) -> None:
    _ignore_signals()
    ForkingPickler.register(torch.UntypedStorage, _sent_storage)
    ForkingPickler.register(torch.Tensor, _sent_tensor)
    if then is not None:
        then(number)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """While open, no handler of the script's runs; a worker that is started meanwhile never runs one."""
    if WINDOWS:  # which has no such mask, and sends signals to one process
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _left_to_the_script())
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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def _left_to_the_script() -> list[int]:
    """The signals for which there is a handler in Python, without those that a worker may need."""
    heard = (number for number in signal.valid_signals() if callable(signal.getsignal(number)))
    return [number for number in heard if signal.Signals(number).name not in _KEPT]


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
