"""Ceilings: what parts reach alone, and what whole bursts need not try because of it."""

from __future__ import annotations

import pytest

from autotune.bursts.protocol import BurstPlan, Part
from autotune.knobs.config import TrainConfig
from autotune.knobs.registry import of_loader
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from autotune.search.ceilings import Ceilings, unlikely_to_gain
from autotune.search.proposal import SINGLE, WORKERS
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
        blocks=(Block(samples=1000, seconds=1.0, data_wait_seconds=wait),), steady=True, start_seconds=0.0,
        build_seconds=0.0, warmup_seconds=0.0, epoch_samples=1000, epoch_boundary_seconds=boundary_seconds,
    )  # fmt: skip


def test_the_fewest_workers_with_headroom_are_chosen() -> None:
    """Two load 1.6 times what computing takes: the first count above 1.3; more are not even tried."""
    parts = Parts(compute=1000, per_worker=800)
    found = parts.ceilings().fewest_workers(BASELINE, (0, 1, 2, 4, 8))
    assert found is not None
    assert found[0] == 2
    assert "1.6 ×" in found[1]
    assert [workers for workers, part in parts.ran if part == "loader"] == [1, 2]


def test_workers_that_load_no_faster_are_not_chosen() -> None:
    """A loader that stays slower than computing gets as many as help: beyond four, none does."""
    found = Parts(compute=10_000, per_worker=800).ceilings().fewest_workers(BASELINE, (0, 1, 2, 4, 8, 16))
    assert found is not None
    assert found[0] == 4


def test_a_part_is_measured_once() -> None:
    """Computing does not know of workers, so that points that differ in them alone share it."""
    parts = Parts(compute=1000, per_worker=800)
    ceilings = parts.ceilings()
    other = Point(config=BASELINE.config.replace(num_workers=2))
    assert ceilings.compute(BASELINE) == ceilings.compute(other) == 1000
    assert parts.ran == [(0, "compute")]
    assert ceilings.of(other) == {"compute": 1000, "loader": None}


def test_without_time_nothing_is_measured() -> None:
    """And nothing is remembered: there may be time at the end."""
    parts = Parts(compute=1000, per_worker=800)
    ceilings = parts.ceilings()
    parts.affordable = False
    assert ceilings.fewest_workers(BASELINE, (0, 1, 2, 4)) is None
    parts.affordable = True
    assert ceilings.compute(BASELINE) == 1000


@pytest.mark.parametrize(
    ("knob", "wait", "boundary_seconds", "unlikely"),
    [
        ("num_workers", 0.01, 0.0, True),
        ("num_workers", 0.3, 0.0, False),
        ("persistent_workers", 0.01, 0.2, False),
        ("precision", 0.01, 0.0, False),
        ("precision", 0.8, 0.0, True),
        ("num_threads", 0.8, 0.0, False),
    ],
)
def test_the_part_that_does_not_limit_comes_last(
    knob: str, wait: float, boundary_seconds: float, unlikely: bool
) -> None:
    """No loader gains where training hardly waits, the epochs' ends included; computing hardly where it does."""
    assert unlikely_to_gain(knob, measured(wait, boundary_seconds)) == unlikely


def test_a_search_that_waits_asks_the_loader_first() -> None:
    """With many numbers of workers, bursts of the loader alone point to one before whole bursts try others."""
    search, surface = make_search(
        example_rate, budget_seconds=200, wait=0.4, loader_rate=lambda c: 1200 * c.num_workers
    )
    search.run()
    stages = [trial.stage for trial in search.log.trials]
    assert WORKERS in stages
    assert stages.index(WORKERS) < stages.index(SINGLE)
    assert surface.parts.index("loader") < surface.parts.index("all", surface.parts.index("loader"))


def test_a_search_that_does_not_wait_tries_workers_last() -> None:
    """Several changes of the computing come before the first of the loader."""
    search, _ = make_search(example_rate, budget_seconds=200, noise=0.0)
    search.run()
    tried = [trial.reason.partition("=")[0] for trial in search.log.trials if trial.stage == SINGLE]
    loading = [position for position, knob in enumerate(tried) if knob in of_loader()]
    assert loading
    assert min(loading) >= 5
    assert WORKERS not in {trial.stage for trial in search.log.trials}


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
    assert search.ceilings.loader(BASELINE) is not None
