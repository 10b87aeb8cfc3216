"""What of a training is timed: warm-up, epochs and the end, by steps that the training itself reports."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader

from autotune import TrainConfig
from autotune.workload.target import load_workload
from benchmarks import stopwatch
from benchmarks.plain import Loop
from benchmarks.stopwatch import Mark, is_warm, timed_marks, timed_part

TINY = "tests.workloads.tiny:build"


@pytest.mark.parametrize(
    ("steps", "batches", "elapsed", "warm"),
    [(3, 16, 0.2, True), (2, 16, 0.2, False), (3, 15, 0.2, False), (3, 16, 0.1, False)],
)
def test_warm_up_needs_steps_batches_and_time(steps: int, batches: int, elapsed: float, warm: bool) -> None:
    """Twice the queue of two workers with four batches each, three steps, and 15 % of the time."""
    config = TrainConfig(num_workers=2, prefetch_factor=4)
    assert is_warm(config, steps, batches, elapsed, 1.0) is warm


def test_whole_epochs_count_when_they_fill_the_time() -> None:
    """A part of an epoch would count its share of the worker start wrongly."""
    marks = [Mark(0, 0, 0), Mark(1, 10, 1), Mark(5, 50, 2), Mark(9, 90, 3), Mark(10, 99, 3)]
    assert timed_part(marks) == (marks[1], marks[3])


@pytest.mark.parametrize("inner", [[], [Mark(5, 50, 1)], [Mark(4, 40, 1), Mark(6, 60, 2)]])
def test_all_of_the_time_counts_when_epochs_are_long(inner: list[Mark]) -> None:
    """Little would be left of the run."""
    marks = [Mark(0, 0, 0), *inner, Mark(10, 100, 2)]
    assert timed_part(marks) == (marks[0], marks[-1])


@pytest.mark.slow
def test_epochs_are_really_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts the loader again, and from mark to mark lie its samples; a look at the clock takes a second here."""
    ticks = itertools.count()
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: float(next(ticks)))
    started: list[object] = []
    monkeypatch.setattr(DataLoader, "__iter__", counting(DataLoader.__iter__, started))
    loop = Loop(load_workload(TINY), TrainConfig(batch_size=32, num_workers=1), "cpu")
    warmup, marks = timed_marks(loop, 0.0, 100.0)
    assert warmup >= 15
    assert marks[-1].seconds - marks[0].seconds == pytest.approx(85, abs=2)
    assert {later.samples - earlier.samples for earlier, later in itertools.pairwise(marks[1:-1])} == {512}
    assert len(started) == loop.epochs + 1 >= 4


def counting(function: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    """The function, noting what it is called on."""

    def counted(self: object) -> Any:
        calls.append(self)
        return function(self)

    return counted


def test_a_training_that_ends_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework may stop when it likes: half a run is no figure."""
    loop = Loop(load_workload(TINY), TrainConfig(batch_size=32), "cpu")
    monkeypatch.setattr(loop, "train", lambda on_step: on_step(32))
    with pytest.raises(RuntimeError, match="ended by itself"):
        timed_marks(loop, 0.0, 100.0)
