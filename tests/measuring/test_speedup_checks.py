"""What stands behind a speed-up beside its interval: how processes differ, and one uninterrupted run of each side."""

from __future__ import annotations

import math
import random

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Measurement, Point
from autotune.measuring.speedup import Rounds, Speedup
from autotune.measuring.statistics import Interval
from benchmarks.ratios import speedup_in
from tests.factories import make_measurement

BEFORE, AFTER = (Point(config=TrainConfig(precision=precision)) for precision in ("fp32", "bf16"))


def rounds_of(
    count: int, *, drift: float, before: float, after: float, gain: float = 1.5
) -> list[dict[Point, Measurement]]:
    """Rounds whose two sides share a drift, and scatter by themselves as well (standard deviations of logarithms)."""
    rng = random.Random(3)
    rounds = []
    for number in range(count):
        shared = rng.gauss(0, drift)
        rates = {BEFORE: 1000 * math.exp(shared + rng.gauss(0, before))}
        rates[AFTER] = 1500 * math.exp(shared + rng.gauss(0, after))
        rounds.append({point: make_measurement(rate, spread=0.001, seed=number) for point, rate in rates.items()})
    return rounds


def test_the_spread_of_each_side_leaves_out_what_both_share() -> None:
    """A machine that drifts by 10 % makes no process look unlike the next one."""
    speedup = speedup_in(rounds_of(200, drift=0.1, before=0.06, after=0.01), BEFORE, AFTER)
    assert speedup.spreads is not None
    before, after = speedup.spreads
    assert 0.04 < before < 0.08
    assert after < 0.03


def test_few_pairs_tell_no_spread() -> None:
    """Four pairs do not tell which side scatters."""
    assert speedup_in(rounds_of(4, drift=0.0, before=0.06, after=0.01), BEFORE, AFTER).spreads is None


@pytest.mark.parametrize(
    ("ran", "agrees", "claims_run"), [(1.5, True, False), (1.1, False, True), (2.1, False, False)],
    ids=["alike", "less", "more"],
)  # fmt: skip
def test_a_claim_is_the_lower_of_turns_and_one_long_run(ran: float, agrees: bool, claims_run: bool) -> None:
    """The long run stands beside the claim; where it falls short beyond noise, it is the claim."""
    rounds = rounds_of(8, drift=0.02, before=0.02, after=0.02)
    by_turns = speedup_in(rounds, BEFORE, AFTER)
    runs = make_measurement(1000.0, seed=1, spread=0.001), make_measurement(1000.0 * ran, seed=1, spread=0.001)
    checked = Rounds(rounds).checked(by_turns, BEFORE, AFTER, runs)
    assert checked.uninterrupted is not None
    assert checked.uninterrupted.agrees is agrees
    assert checked.ratio == pytest.approx(ran if claims_run else by_turns.ratio, rel=0.01)
    assert checked.ci95.low < checked.ratio < checked.ci95.high


def test_a_long_run_that_falls_short_counts_as_one_of_several_finalists() -> None:
    """The interval of a claim holds for all finalists at once; that of the check itself is of two single runs."""
    rounds = rounds_of(8, drift=0.02, before=0.02, after=0.02)
    by_turns = speedup_in(rounds, BEFORE, AFTER)
    runs = make_measurement(1000.0, seed=1), make_measurement(1100.0, seed=1)
    alone, of_ten = (Rounds(rounds).checked(by_turns, BEFORE, AFTER, runs, among=among) for among in (1, 10))
    assert of_ten.ci95.low < alone.ci95.low < alone.ci95.high < of_ten.ci95.high
    assert of_ten.uninterrupted == alone.uninterrupted


def test_rounds_whose_blocks_are_no_pairs_make_no_interval_narrower() -> None:
    """They do not show how blocks scatter, so they count as those that do."""
    before, after = (make_measurement(spread=0.3, seed=seed) for seed in (1, 2))
    *others, seventh, eighth = after.blocks
    both = seventh.model_copy(update={"samples": 2000, "seconds": seventh.seconds + eighth.seconds})
    unpaired = after.model_copy(update={"blocks": (*others, both)})
    rounds = [{BEFORE: before, AFTER: after}, {BEFORE: before, AFTER: unpaired}]
    mixed, paired = (speedup_in(sides * 8, BEFORE, AFTER).ci95 for sides in (rounds, rounds[:1] * 2))
    assert tuple(mixed) == pytest.approx(tuple(paired))


def test_a_speedup_says_how_many_epochs_it_covers() -> None:
    """All timed samples of one side, over those of an epoch; endless data have none."""
    rounds = rounds_of(3, drift=0.0, before=0.0, after=0.0)
    samples = sum(block.samples for one in rounds for block in one[BEFORE].blocks)

    def covered(epoch_samples: int | None) -> float | None:
        update = {"epoch_samples": epoch_samples}
        updated = [{point: one.model_copy(update=update) for point, one in each.items()} for each in rounds]
        return speedup_in(updated, BEFORE, AFTER).epochs

    assert covered(2 * samples) == pytest.approx(0.5)
    assert covered(None) is None


@pytest.mark.parametrize(("anytime", "low", "is_sure"), [(True, 1.03, True), (True, 0.99, False), (False, 1.03, False)])
def test_an_interval_that_holds_at_every_look_needs_no_margin(anytime: bool, low: float, is_sure: bool) -> None:
    """A training that was tuned while it ran has such an interval; another one ends when the pairs look good."""
    assert Speedup(ratio=1.3, ci95=Interval(low, 1.7), pairs=5, anytime=anytime).confirmed is is_sure
