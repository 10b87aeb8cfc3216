"""Racing: near-equals run in interleaved rounds, the clearly slower drop out, and of equals the cheapest wins."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from autotune.measuring.speedup import Round, Rounds
from autotune.search.rounds import LONG_RACE_ROUNDS, MIN_DECIDED_ROUNDS, as_good_as_the_fastest, confirm, rank
from autotune.sessions.tuning_result import judge
from benchmarks.ratios import speedup_in
from tests.search.surface import make_search, make_space

BASELINE, FIRST, SECOND, THIRD = (Point(config=TrainConfig(batch_size=size)) for size in (64, 32, 16, 8))


def measured(rate: float) -> Measurement:
    """Blocks at about this rate."""
    blocks = tuple(Block(samples=1000, seconds=1000 / (rate * f), data_wait_seconds=0.0) for f in (0.995, 1.0, 1.005))
    return Measurement(blocks=blocks, start_seconds=0.0, build_seconds=0.0, warmup_seconds=0.0)


def race(rates: dict[Point, float], noise: float = 0.005, rival: float = 0.0) -> list[list[Point]]:
    """Who ran in each round."""
    rng = random.Random(3)
    rounds: list[list[Point]] = []

    def run(point: Point) -> Burst:
        rate = rates[point] * rng.gauss(1, noise)
        return Burst(point=point, outcome=Outcome.OK, measurement=measured(rate), seconds=1.0)

    def play(points: Sequence[Point], _: int) -> list[Burst]:
        rounds.append(list(points))
        return [run(point) for point in points]

    finalists = [point for point in rates if point != BASELINE]
    confirm(BASELINE, finalists, play, Rounds(()), affords=lambda _: True, rival=rival)
    return rounds


def test_a_finalist_that_is_clearly_beaten_drops_out() -> None:
    """It runs in the first three rounds and in no later one; those that are close go on, and in the end one does."""
    rounds = race({BASELINE: 1000, FIRST: 2000, SECOND: 1990, THIRD: 1500}, noise=0.04)
    assert all(THIRD in who for who in rounds[:3])
    assert all(THIRD not in who for who in rounds[3:])
    assert all({BASELINE, FIRST, SECOND} <= set(who) for who in rounds[:4])
    assert len(rounds) > LONG_RACE_ROUNDS
    assert all(len(who) == 2 for who in rounds[LONG_RACE_ROUNDS:])


def test_a_finalist_that_the_baseline_beats_drops_out() -> None:
    """What a disturbed search took for the best leaves the rest of the time to others, or ends the rounds."""
    rounds = race({BASELINE: 1000, FIRST: 800, SECOND: 1200}, noise=0.03)
    assert all(FIRST not in who for who in rounds[4:])
    assert len(race({BASELINE: 1000, FIRST: 800}, noise=0.03)) == 4


@pytest.mark.parametrize(("gain", "rival", "drops_out"), [(1.0, 1.3, True), (1.0, 1.0, False), (1.5, 2.0, False)])
def test_a_finalist_without_a_gain_makes_room_for_a_rival(gain: float, rival: float, drops_out: bool) -> None:
    """One whose gain is confirmed stays, since a rival may disappoint too."""
    rounds = race({BASELINE: 1000, FIRST: 1000 * gain}, noise=0.02, rival=rival)
    assert (len(rounds) < MIN_DECIDED_ROUNDS) == drops_out


def rounds_of(*ratios: dict[Point, float]) -> list[Round]:
    """Rounds with the baseline at 1,000 samples/s."""
    return [{BASELINE: measured(1000)} | {point: measured(1000 * r) for point, r in each.items()} for each in ratios]


def test_a_tie_is_told_from_a_clear_lead() -> None:
    """Within 2 % and with overlapping rounds two are equals; 5 % behind in every round is not."""
    rounds = rounds_of(
        {FIRST: 2.00, SECOND: 1.98, THIRD: 1.90}, {FIRST: 2.02, SECOND: 2.03, THIRD: 1.91},
        {FIRST: 2.01, SECOND: 1.99, THIRD: 1.90}, {FIRST: 2.03, SECOND: 2.01, THIRD: 1.92},
    )  # fmt: skip
    assert set(as_good_as_the_fastest(rank(BASELINE, Rounds(rounds)), Rounds(rounds))) == {FIRST, SECOND}


def test_what_is_not_faster_than_the_baseline_is_no_equal() -> None:
    """Only a confirmed gain displaces the baseline."""
    rounds = rounds_of({FIRST: 1.00}, {FIRST: 1.02}, {FIRST: 0.99})
    assert as_good_as_the_fastest(rank(BASELINE, Rounds(rounds)), Rounds(rounds)) == []


def test_the_interval_allows_for_the_choice_among_several() -> None:
    """Of four pairs, that of one among three is 1.43 times as wide."""
    rounds = rounds_of({FIRST: 2.0}, {FIRST: 2.1}, {FIRST: 2.2}, {FIRST: 2.05})
    alone, of_three = (speedup_in(rounds, BASELINE, FIRST, among=count).ci95 for count in (1, 3))
    assert math.log(of_three.high / of_three.low) == pytest.approx(1.43 * math.log(alone.high / alone.low), rel=0.01)
    of_two = rounds_of({FIRST: 2.0, SECOND: 1.9}, {FIRST: 2.1, SECOND: 1.95})
    assert rank(BASELINE, Rounds(of_two))[0].speedup == speedup_in(of_two, BASELINE, FIRST, among=2)


def test_of_equals_the_cheapest_is_recommended() -> None:
    """Workers that gain nothing, and compiling that gains nothing, are not recommended."""

    def rate(config: TrainConfig) -> float:
        return 2000.0 if config.precision == "bf16" else 1000.0

    search, _ = make_search(rate, budget_seconds=120, noise=0.005, seed=0)
    search.run()
    config = judge(search, "budget")[0].config
    assert config.precision == "bf16"
    assert config.num_workers == 0
    assert config.compile_mode is None


def test_of_equals_the_one_that_took_notably_less_memory_in_the_rounds_is_recommended() -> None:
    """A few megabytes more are worth no speed; what other processes took while they lived alone does not count."""
    for frugal, expected in ((0.9, "fused"), (0.5, "foreach")):

        def rate(config: TrainConfig) -> float:
            return 1000.0 * {"default": 1.0, "foreach": 1.3, "fused": 1.3 * 1.006}[config.optimizer_impl]

        def taken(config: TrainConfig, frugal: float = frugal) -> float:
            return 1e9 * (frugal if config.optimizer_impl == "foreach" else 1.0)

        space = make_space(only=("optimizer_impl",))
        search, _ = make_search(rate, budget_seconds=300, noise=0.002, space=space, bytes_of=taken, seed=0)
        search.run()
        assert judge(search, "budget")[0].config.optimizer_impl == expected


def test_a_baseline_that_scatters_more_than_others_widens_the_interval() -> None:
    """Two finalists that agree in each round say nothing about it."""
    factors = (0.9, 1.1, 0.92, 1.08, 0.95, 1.05)
    quiet = rounds_of(*({FIRST: 2.0, SECOND: 2.0} for _ in factors))
    noisy = rounds_of(*({FIRST: 2.0 * factor, SECOND: 2.0 * factor} for factor in factors))
    alone = rounds_of(*({FIRST: 2.0 * factor} for factor in factors))

    def width(rounds: Sequence[Round]) -> float:
        interval = speedup_in(rounds, BASELINE, FIRST).ci95
        return math.log(interval.high / interval.low)

    assert width(quiet) < 0.2 * width(noisy)
    assert width(noisy) > 0.8 * width(alone)


def test_rounds_that_have_decided_are_not_followed_by_another() -> None:
    """Those of an interrupted run, say."""
    known = rounds_of(*({FIRST: 2.0 * factor} for factor in (1.0, 1.001, 0.999, 1.0, 1.001)))
    played: list[int] = []
    confirm(BASELINE, [FIRST], lambda _, number: played.append(number) or [], Rounds(known), affords=lambda _: True)
    assert not played


def test_rounds_end_by_their_width_whatever_the_gain() -> None:
    """To end with the first that is beyond doubt would find too many gains."""
    lengths = {len(race({BASELINE: 1000, FIRST: 1000 * gain}, noise=0.02)) for gain in (1.02, 1.1, 1.5)}
    assert len(lengths) == 1


@pytest.mark.parametrize(("between", "block", "long"), [(0.1, 0.01, False), (0.0, 0.2, True)])
def test_rounds_are_as_long_as_their_variances_say(between: float, block: float, long: bool) -> None:
    """Where processes differ, many short ones; where blocks do, few long ones."""
    rng = random.Random(1)

    def side(rate: float) -> Measurement:
        rates = (rate * math.exp(rng.gauss(0, block)) for _ in range(10))
        blocks = tuple(Block(samples=100, seconds=100 / one, data_wait_seconds=0.0) for one in rates)
        return measured(rate).model_copy(update={"blocks": blocks})

    rounds = [{BASELINE: side(1000), FIRST: side(2000 * math.exp(rng.gauss(0, between)))} for _ in range(8)]
    seconds = Rounds(rounds).best_seconds(BASELINE, FIRST, start_seconds=1.0)
    assert seconds is not None
    assert (seconds > 1.0) == long
