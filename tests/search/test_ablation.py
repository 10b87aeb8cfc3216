"""Ablation: which configs are compared with the winner, and what the pairs of the search say of them."""

from __future__ import annotations

import math

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.search.ablation import ablation_rows, reverted
from autotune.search.model import Design
from autotune.search.proposal import ALLOCATOR, GAIN
from autotune.search.trials import Trial
from tests.factories import make_measurement
from tests.search.surface import make_space

BASELINE = Point(config=TrainConfig(batch_size=64))


def winner(**knobs: object) -> Point:
    """The baseline with some knobs changed."""
    return Point(config=BASELINE.config.replace(**knobs))


def test_each_changed_knob_is_reverted_alone_in_the_guides_order() -> None:
    """Whatever has not changed is left out."""
    best = winner(allocator="tuned", precision="bf16", memory_format="channels_last")
    found = reverted(best, BASELINE)
    assert list(found) == ["precision", "memory_format", "allocator"]
    assert found["precision"].config == best.config.replace(precision="fp32")


def test_the_effective_batch_stays() -> None:
    """The accumulation goes with the batch size."""
    best = winner(batch_size=16, accumulation_steps=4)
    assert reverted(best, BASELINE) == {"batch_size": BASELINE}


def test_what_has_no_effect_is_left_out() -> None:
    """A prefetch factor of 2 is torch's own; without workers nothing persists."""
    assert list(reverted(winner(num_workers=2, persistent_workers=True), BASELINE)) == [
        "num_workers",
        "persistent_workers",
    ]


def test_arguments_of_build_are_reverted_too() -> None:
    """To the baseline's value, or to build's own."""
    best = Point(config=BASELINE.config, parameters={"width": 32, "depth": 2})
    before = Point(config=BASELINE.config, parameters={"width": 64})
    assert {name: dict(point.parameters) for name, point in reverted(best, before).items()} == {
        "depth": {"width": 32},
        "width": {"width": 64, "depth": 2},
    }


def trial(point: Point, over: Point, ratio: float, within: float = 1.02, stage: str = GAIN) -> Trial:
    """A pair that played, within 2 %."""
    burst = Burst(point=point, outcome=Outcome.OK, measurement=make_measurement(1000 * ratio), seconds=1.0)
    pair = Pair(partner=over, ratio=ratio, ci95=Interval(ratio / within, ratio * within), blocks=8)
    return Trial(burst, stage, "", pair=pair)


def worths(best: Point, *played: Trial, speedup: Speedup | None = None) -> dict[str, tuple[float, Interval]]:
    """What is known after some pairs."""
    baseline = Point(config=make_space().baseline)
    trials = [trial(baseline, baseline, 1.0), *played]
    rows = ablation_rows(best, baseline, trials, Design(make_space()), speedup)
    return {row.knob: (row.ratio, row.ci95) for row in rows}


def test_a_change_is_worth_what_the_pairs_without_it_say() -> None:
    """Also where no pair held all the others: effects add up."""
    best, half = winner(precision="bf16", memory_format="channels_last"), winner(precision="bf16")
    found = worths(best, trial(half, BASELINE, 1.6), trial(best, half, 1.1))
    assert {name: ratio for name, (ratio, _) in found.items()} == pytest.approx(
        {"precision": 1.6, "memory_format": 1.1}, rel=0.05
    )
    assert all(ci95.low < ratio < ci95.high for ratio, ci95 in found.values())
    assert found["memory_format"][1].low > 1


def test_the_parts_multiply_to_the_whole_that_is_confirmed() -> None:
    """Estimates of what was picked for them are flattered: all together they are worth what the proof says."""
    best, half = winner(precision="bf16", memory_format="channels_last"), winner(precision="bf16")
    confirmed = Speedup(ratio=1.4, ci95=Interval(1.38, 1.42), pairs=10)
    found = worths(best, trial(half, BASELINE, 1.6), trial(best, half, 1.1), speedup=confirmed)
    assert math.prod(ratio for ratio, _ in found.values()) == pytest.approx(1.4, rel=0.03)
    assert found["precision"][0] < 1.6


def test_a_change_that_no_pair_tells_from_the_others_is_left_out() -> None:
    """The model would only repeat its prior."""
    best = winner(precision="bf16", memory_format="channels_last", num_workers=2)
    assert "memory_format" not in worths(best, trial(best, BASELINE, 1.5))


@pytest.mark.parametrize(("within", "is_shown"), [(1.1, True), (6.0, False)])
def test_a_disturbed_comparison_of_allocators_is_no_worth(within: float, is_shown: bool) -> None:
    """The confirmed speed-up would give it much of what another change has gained."""
    best, tuned = winner(precision="bf16", allocator="tuned"), winner(allocator="tuned")
    confirmed = Speedup(ratio=30.0, ci95=Interval(25.0, 36.0), pairs=10)
    played = trial(tuned, BASELINE, 0.9, within, ALLOCATOR), trial(best, BASELINE, 20.0)
    assert ("allocator" in worths(best, *played, speedup=confirmed)) is is_shown
