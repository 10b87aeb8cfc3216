"""What of a training is timed: turns of so many samples after a warm-up, by steps that the training itself reports."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader

from autotune import TrainConfig
from autotune.workload.target import load_workload
from benchmarks.plain import Loop
from benchmarks.stopwatch import Ready, Turn, Turns, is_warm

TINY = "tests.workloads.tiny:build"


class Script:
    """A wire that gives these turns, and keeps what is sent."""

    def __init__(self, *turns: int | None) -> None:
        self.turns = list(turns)
        self.sent: list[Any] = []

    def send(self, obj: Any, /) -> None:
        self.sent.append(obj)

    def recv(self) -> int | None:
        return self.turns.pop(0)


def timed(loop: Loop, script: Script, warmup_seconds: float) -> list[Any]:
    """What is said of a training in which each look at the clock takes a second."""
    ticks = itertools.count()
    loop.train(Turns(loop, script, 0.0, warmup_seconds, clock=lambda: float(next(ticks))).on_step)
    return script.sent


@pytest.mark.parametrize(
    ("steps", "batches", "elapsed", "warm"),
    [(4, 16, 0.2, True), (3, 16, 0.2, False), (4, 15, 0.2, False), (4, 16, 0.1, False)],
)
def test_warm_up_needs_steps_batches_and_time(steps: int, batches: int, elapsed: float, warm: bool) -> None:
    """Twice the queue of two workers with four batches each, more than three steps, and the time."""
    config = TrainConfig(num_workers=2, prefetch_factor=4)
    assert is_warm(config, steps, batches, elapsed, 0.15) is warm


def test_turns_end_at_places_in_the_stream_of_samples() -> None:
    """What a turn of 40 overshoots in whole steps of 32, the next ones lack."""
    loop = Loop(load_workload(TINY), TrainConfig(batch_size=32), "cpu")
    ready, *turns = timed(loop, Script(40, 40, 40, 40, None), warmup_seconds=3)
    assert isinstance(ready, Ready)
    assert [turn.samples for turn in turns] == [64, 32, 32, 32]


def test_first_steps_are_no_part_of_the_warm_ups_time() -> None:
    """A clock that is first looked at after them: compiling must not use it up."""
    loop = Loop(load_workload(TINY), TrainConfig(batch_size=32), "cpu")
    ready, turn = timed(loop, Script(32, None), warmup_seconds=5)
    assert ready.warmup_seconds > 5
    assert ready.samples_per_second == pytest.approx(32, rel=0.3)
    assert turn == Turn(samples=32, seconds=1.0, epochs=0)


@pytest.mark.slow
def test_epochs_are_really_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts the loader again, within a turn as between turns."""
    started: list[object] = []
    monkeypatch.setattr(DataLoader, "__iter__", counting(DataLoader.__iter__, started))
    loop = Loop(load_workload(TINY), TrainConfig(batch_size=32, num_workers=1), "cpu")
    _, *turns = timed(loop, Script(512, 1024, None), warmup_seconds=2)
    assert [turn.epochs for turn in turns] == [1, 2]
    assert len(started) == loop.epochs + 1


def counting(function: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    """The function, noting what it is called on."""

    def counted(self: object) -> Any:
        calls.append(self)
        return function(self)

    return counted
