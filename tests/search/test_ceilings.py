"""Ceilings: what parts reach alone, and what whole bursts need not try because of it."""

from __future__ import annotations

import math

import pytest

from autotune.bursts.hosts.protocol import BurstPlan, Part
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from autotune.search.ceilings import Ceilings, most_gain
from tests.search.surface import example_rate, make_search

BASELINE = Point(config=TrainConfig(batch_size=64))


class Parts:
    """Rates of made-up parts; each run is noted."""

    def __init__(self, compute: float, per_worker: float) -> None:
        self.compute, self.per_worker = compute, per_worker
        self.ran: list[tuple[int, Part]] = []
        self.affordable = True

    def run(self, point: Point, part: Part) -> float | None:
        """The loader grows with its workers, up to four."""
        workers = point.config.num_workers
        self.ran.append((workers, part))
        return self.compute if part == "compute" else self.per_worker * min(4, max(1, workers))

    def ceilings(self) -> Ceilings:
        """Ceilings over these."""
        return Ceilings(self.run, lambda _: self.affordable)


def measured(wait: float, boundary_seconds: float = 0.0) -> Measurement:
    """A second in which training waited for this share, at 1,000 samples an epoch and a second."""
    return Measurement(
        blocks=(Block(samples=1000, seconds=1.0, data_wait_seconds=wait),), start_seconds=0.0,
        build_seconds=0.0, warmup_seconds=0.0, epoch_samples=1000, epoch_boundary_seconds=boundary_seconds,
    )  # fmt: skip


def test_a_part_is_measured_once() -> None:
    """Computing does not know of workers, so that points that differ in them alone share it."""
    parts = Parts(compute=1000, per_worker=800)
    ceilings = parts.ceilings()
    other = Point(config=BASELINE.config.replace(num_workers=2))
    assert ceilings.rate(BASELINE, "compute") == ceilings.rate(other, "compute") == 1000
    assert parts.ran == [(0, "compute")]
    assert ceilings.of(other) == {"compute": 1000, "loader": None}


def test_without_time_nothing_is_measured() -> None:
    """And nothing is remembered: there may be time at the end."""
    parts = Parts(compute=1000, per_worker=800)
    ceilings = parts.ceilings()
    parts.affordable = False
    assert ceilings.rate(BASELINE, "compute") is None
    parts.affordable = True
    assert ceilings.rate(BASELINE, "compute") == 1000


@pytest.mark.parametrize(
    ("knob", "wait", "boundary_seconds", "most"),
    [
        ("num_workers", 0.01, 0.0, 0.01),
        ("num_workers", 0.5, 0.0, 0.693),
        ("persistent_workers", 0.0, 0.2, 0.18),
        ("precision", 0.8, 0.0, 0.223),
        ("num_threads", 0.8, 0.0, math.inf),
    ],
)
def test_no_part_gains_more_than_its_time(knob: str, wait: float, boundary_seconds: float, most: float) -> None:
    """A loader gains the wait and the epochs' ends; computing the rest; what shares the cores is not bounded."""
    assert most_gain([knob], measured(wait, boundary_seconds)) == pytest.approx(most, abs=0.01)


@pytest.mark.parametrize("knob", ["pin_memory", "non_blocking", "device_prefetch"])
def test_a_faster_copy_to_the_device_can_gain_without_waits(knob: str) -> None:
    """Waiting for the loader does not contain the copy; a loader gains no more than the wait, on a GPU too."""
    assert most_gain([knob], measured(0.0), "cuda") == math.inf
    assert most_gain([knob, "num_workers"], measured(0.0), "cuda") == math.inf
    assert most_gain(["num_workers", "prefetch_factor"], measured(0.01), "cuda") == pytest.approx(0.01, abs=0.01)


def test_a_part_that_found_no_memory_beside_the_incumbent_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lives beside it is ended, and its memory is free; only then is nothing known."""
    search, surface = make_search(example_rate)
    lives = [True]
    run = surface.run

    def crowded(point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        if lives:
            return Burst(point=point, outcome=Outcome.OOM, seconds=1.0)
        return run(point, plan, deadline_seconds)

    monkeypatch.setattr(surface, "run", crowded)
    monkeypatch.setattr(surface, "close", lives.clear)
    assert search.ceilings.rate(BASELINE, "loader") is not None
