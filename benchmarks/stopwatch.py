"""Times a training by its optimizer steps: leaves the beginning out, and counts whole epochs where it can."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from autotune import TrainConfig

if TYPE_CHECKING:
    import torch


WARMUP_SHARE, WARMUP_STEPS, QUEUE_DRAINS = 0.15, 3, 2
WHOLE_EPOCHS_SHARE = 0.5
"""Whole epochs are what counts if they fill this share of the timed part; else all of it does."""

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


class Mark(NamedTuple):
    """How far training had come at a moment."""

    seconds: float
    samples: int
    epochs: int


class Stopwatch:
    """Marks the end of the warm-up, the first step of each epoch after it, and the end.

    Args:
        loop: What is timed.
        began: When it began to be built, by ``time.perf_counter``.
        seconds: To train, the warm-up's share of them included; a warm-up that takes longer adds to them.

    Attributes:
        marks: So far.
    """

    def __init__(self, loop: Trainee, began: float, seconds: float) -> None:
        self.marks: list[Mark] = []
        self._loop = loop
        self._began = began
        self._seconds = seconds
        self._steps = 0
        self._samples = 0

    def on_step(self, samples: int) -> bool:
        """A step of so many samples was taken; returns whether the time is up."""
        now = time.perf_counter()
        self._steps += 1
        if not self.marks:
            if is_warm(self._loop.config, self._steps, self._loop.batches, now - self._began, self._seconds):
                self._mark()
            return False
        self._samples += samples
        if self._loop.epochs > self.marks[-1].epochs:
            # This is the first step of a new epoch: its samples came after that epoch's worker start.
            self._mark()
        if now - self.marks[0].seconds < (1 - WARMUP_SHARE) * self._seconds:
            return False
        self._mark()
        return True

    def _mark(self) -> None:
        self._loop.synchronize()
        self.marks.append(Mark(time.perf_counter(), self._samples, self._loop.epochs))


def timed_marks(loop: Trainee, began: float, seconds: float) -> tuple[float, list[Mark]]:
    """Trains; returns the seconds that were left out and marks: the beginning, each epoch's first step, the end.

    Raises:
        RuntimeError: When training ended by itself before its time was up.
    """
    watch = Stopwatch(loop, began, seconds)
    loop.train(watch.on_step)
    if len(watch.marks) < 2:
        raise RuntimeError(f"training ended by itself after {loop.batches} batches, but {seconds:g} s were expected")
    return watch.marks[0].seconds - began, watch.marks


def is_warm(config: TrainConfig, steps: int, batches: int, elapsed: float, seconds: float) -> bool:
    """Whether the warm-up's time has passed, the first steps are done and the full queue of the start is used up."""
    queue = QUEUE_DRAINS * config.num_workers * (config.prefetch_factor or 0)
    return elapsed >= WARMUP_SHARE * seconds and steps >= WARMUP_STEPS and batches >= queue


def timed_part(marks: Sequence[Mark]) -> tuple[Mark, Mark]:
    """Where the timed part begins and ends: whole epochs if they fill enough of it, so that none counts in part."""
    inner = marks[1:-1]
    whole = marks[-1].seconds - marks[0].seconds
    if len(inner) >= 2 and inner[-1].seconds - inner[0].seconds >= WHOLE_EPOCHS_SHARE * whole:
        return inner[0], inner[-1]
    return marks[0], marks[-1]
