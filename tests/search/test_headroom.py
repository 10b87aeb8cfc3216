"""What a faster loader could bring is known before the search spends its time, and is not asked where that is short."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.measuring.records import Headroom, Point
from autotune.measuring.statistics import Interval
from autotune.results.summary import headroom_text
from autotune.search.driver import Search
from tests.conftest import RunnerOf
from tests.search.surface import SurfaceRunner, example_rate, make_search


def searched(**options: Any) -> tuple[Search, SurfaceRunner]:
    """A search that asks, on a machine whose loader takes a third of the time."""
    search, surface = make_search(
        example_rate, headroom=True, compute_rate=lambda config: 1.5 * example_rate(config), **options
    )
    search.run()
    return search, surface


def test_it_is_measured_right_after_the_baseline() -> None:
    """Beside the baseline, on batches at hand; what that was is the baseline's ceiling of computing, and no trial.

    The same config would seem to be faster than it is.
    """
    search, surface = searched(budget_seconds=120)
    assert surface.parts[:2] == ["all", "compute"]
    assert surface.ran[:2] == [search.baseline, search.baseline]
    assert search.headroom is not None
    assert search.headroom.ratio == pytest.approx(1.5, rel=0.1)
    assert search.headroom.loader_fraction == pytest.approx(1 / 3, abs=0.1)
    assert search.headroom.ci95 is not None
    assert search.ceilings.of(search.baseline)["compute"] == search.headroom.cached_samples_per_second
    assert sum(trial.burst.point == search.baseline and trial.round is None for trial in search.log.trials) == 1


def test_a_short_budget_is_left_to_the_search() -> None:
    """Fourteen seconds hold six bursts."""
    search, surface = searched(budget_seconds=14)
    assert search.headroom is None
    assert "compute" not in surface.parts[:2]


COSTS = "loading costs 33 % of the time, its share of the processors included: a faster loader gives at most 1.50×"


@pytest.mark.parametrize(
    ("ratio", "ends", "words"),
    [
        (1.5, (1.4, 1.6), f"{COSTS} (95 %"),
        (1.5, None, COSTS),
        (1.12, (0.0138, 91.2), "the cost of loading varied too much to state (95 % interval 0.0138 – 91.2)"),
        (0.99, None, "loading costs nothing measurable"),
    ],
)
def test_it_is_told_in_a_sentence(ratio: float, ends: tuple[float, float] | None, words: str) -> None:
    """Its share of the time, and what that bounds."""
    ci95 = Interval(*ends) if ends is not None else None
    assert words in headroom_text(Headroom(ratio=ratio, ci95=ci95, cached_samples_per_second=100.0))


def test_real_processes_show_what_the_loader_costs(runner_of: RunnerOf) -> None:
    """Reading a batch takes 20 ms and a step 10: without reading, training is three times as fast."""
    runner = runner_of("tests.workloads.sleepy:build")
    parameters = {"read_seconds": 0.005, "step_seconds": 0.01, "batch_size": 4}
    config: dict[str, Any] = {"batch_size": 4}
    point = Point.model_validate({"config": config, "parameters": parameters})
    plan = BurstPlan(measure_seconds=0.8, fastest_wins=False)
    runner.challenge(None, [point], plan, 30.0, lambda *_: None)
    cached = plan.model_copy(update={"part": "compute"})
    ((burst, pair),) = runner.challenge(point, [point], cached, 30.0, lambda *_: None)
    runner.close()
    assert burst.ok
    assert pair is not None
    assert pair.ratio == pytest.approx(3, rel=0.2)
