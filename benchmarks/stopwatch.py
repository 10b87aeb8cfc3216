"""Times a training in turns of so many samples; after each it waits, in the middle of an epoch, to be told the next.

The beginning is left out, generously: the first steps, which compile and allocate, then a fixed time, and what the
loader had prepared in advance. From then on everything counts, ends of epochs as they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from autotune import TrainConfig

if TYPE_CHECKING:
    import torch


WARMUP_STEPS, QUEUE_DRAINS = 3, 2

OnStep = Callable[[int], bool]
"""Called with the samples of each optimizer step that was taken; returns whether that is enough of training."""


class Trainee(Protocol):
    """A training that can be timed.

    Attributes:
        config: How it trains.
        epochs: Whole epochs so far.
        batches: Micro-batches so far.
        last_loss: Of the last micro-batch.
    """

    config: TrainConfig
    epochs: int
    batches: int
    last_loss: torch.Tensor

    def train(self, on_step: OnStep) -> None:
        """Trains, epoch after epoch, until `on_step` says that it is enough."""

    def synchronize(self) -> None:
        """Waits until the device has done all that it was given."""


class Wire(Protocol):
    """What leads to whoever gives the turns."""

    def send(self, obj: Any, /) -> None:
        """Tells."""

    def recv(self) -> Any:
        """Waits to be told."""


class Ready(NamedTuple):
    """Warmed up: the seconds since it began to be built, and about how fast it trains."""

    warmup_seconds: float
    samples_per_second: float


class Turn(NamedTuple):
    """What was trained in a turn; `epochs` is how many ended in it."""

    samples: int
    seconds: float
    epochs: int


class Turns:
    """Warms a training up, then lets it go on turn by turn: sends `Ready`, then a `Turn` for each number it receives.

    A turn goes on to a place in the stream of samples: what one overshoots, since it takes whole optimizer steps, the
    next one lacks.

    Args:
        loop: What is timed.
        wire: Leads to whoever says how many samples a turn has; None says that it is enough.
        began: When the training began to be built, by `clock`.
        warmup_seconds: Left out after the first steps.
        clock: Seconds.
    """

    def __init__(
        self,
        loop: Trainee,
        wire: Wire,
        began: float,
        warmup_seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self._wire = wire
        self._began = began
        self._warmup_seconds = warmup_seconds
        self._clock = clock
        self._ready = False
        self._steps = self._samples = self._until = 0
        self._from = (0.0, 0, 0)

    def on_step(self, samples: int) -> bool:
        """A step of so many samples was taken; returns whether training is over."""
        self._steps += 1
        self._samples += samples
        if not self._ready:
            return self._warm_up()
        if self._samples < self._until:
            return False
        began, before, epochs = self._from
        self._loop.synchronize()
        self._wire.send(Turn(self._samples - before, self._clock() - began, self._loop.epochs - epochs))
        return self._next()

    def _warm_up(self) -> bool:
        if self._steps == WARMUP_STEPS:
            self._mark()
            return False
        began, before, _ = self._from
        if not is_warm(self._loop.config, self._steps, self._loop.batches, self._clock() - began, self._warmup_seconds):
            return False
        self._loop.synchronize()
        now = self._clock()
        self._wire.send(Ready(now - self._began, (self._samples - before) / (now - began)))
        self._ready, self._until = True, self._samples
        return self._next()

    def _next(self) -> bool:
        more = self._wire.recv()
        if more is None:
            return True
        self._until += more
        self._mark()
        return False

    def _mark(self) -> None:
        self._loop.synchronize()
        self._from = self._clock(), self._samples, self._loop.epochs


def is_warm(config: TrainConfig, steps: int, batches: int, elapsed: float, seconds: float) -> bool:
    """Whether the warm-up's time has passed, the first steps are done and the full queue of the start is used up."""
    queue = QUEUE_DRAINS * config.num_workers * (config.prefetch_factor or 0)
    return steps > WARMUP_STEPS and elapsed >= seconds and batches >= queue
