"""What paired blocks say while they are still played, and which rounds count."""

from __future__ import annotations

import math
import os
import random
import statistics

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import LEAST_BLOCKS, Pair, pair_of
from autotune.measuring.ratios import Scatter
from autotune.measuring.records import Measurement, Point
from autotune.measuring.speedup import Rounds
from autotune.measuring.statistics import Interval
from autotune.measuring.telemetry_summary import TelemetrySummary, bearable
from benchmarks.ratios import speedup_in
from tests.factories import make_measurement

INCUMBENT, CANDIDATE = Point(config=TrainConfig(batch_size=16)), Point(config=TrainConfig(batch_size=32))
SIMULATIONS, LOOKS = 300, 30


def duet(ratio: float, noise: float, seed: int, scatter: Scatter | None = None) -> list[Pair]:
    """What is known after each block of a duet, which the scatter learns from at its end."""
    rng = random.Random(seed)
    mine: list[float] = []
    theirs: list[float] = []
    known = []
    for _ in range(LOOKS):
        shared = math.exp(rng.gauss(0, 0.3))
        mine.append(shared * math.exp(rng.gauss(0, noise)))
        theirs.append(shared / ratio * math.exp(rng.gauss(0, noise)))
        pair = pair_of(INCUMBENT, mine, theirs, scatter)
        assert pair is not None
        known.append(pair)
    if scatter is not None:
        scatter.add(mine, theirs)
    return known


def test_the_interval_holds_at_every_look() -> None:
    """Whoever looks after each of thirty blocks calls equals different in five of a hundred duets at most."""
    wrong = sum(any(pair.verdict != "undecided" for pair in duet(1.0, 0.05, seed)) for seed in range(SIMULATIONS))
    assert wrong <= 0.05 * SIMULATIONS


def test_the_interval_holds_where_noise_is_borrowed() -> None:
    """As often where each duet takes on trust how the ones before it have scattered, some of them thrice less."""
    scatter, rng = Scatter(), random.Random(0)
    wrong = sum(
        any(pair.verdict != "undecided" for pair in duet(1.0, 0.05 * math.exp(rng.gauss(0, 0.35)), seed, scatter))
        for seed in range(SIMULATIONS)
    )
    assert wrong <= 0.05 * SIMULATIONS


def test_what_others_have_shown_decides_sooner() -> None:
    """Three blocks hardly say how they scatter: after a few duets of the same noise, a third slower is clear."""
    scatter = Scatter()
    for seed in range(5):
        duet(1.0, 0.05, seed, scatter)

    def decided(known: Scatter | None) -> int:
        return sum(duet(0.7, 0.05, seed, known)[LEAST_BLOCKS - 1].verdict == "slower" for seed in range(30))

    alone = decided(None)
    assert decided(scatter) >= 27 > alone


@pytest.mark.parametrize(("ratio", "verdict"), [(0.7, "slower"), (1.4, "faster")])
def test_what_is_clear_is_decided_soon(ratio: float, verdict: str) -> None:
    """A third more or less shows within ten blocks, though the machine's own speed scatters by as much."""
    soon = [duet(ratio, 0.05, seed)[9].verdict == verdict for seed in range(30)]
    assert sum(soon) >= 27


def test_what_is_slower_is_let_go_soon_and_what_gains_is_kept() -> None:
    """Long before it is proven: a twentieth slower costs some blocks; a twentieth faster is hardly ever let go."""

    def ends(ratio: float) -> list[tuple[int, bool]]:
        courses = [duet(ratio, 0.04, seed)[:12] for seed in range(100)]
        last = [next((index for index, pair in enumerate(course) if pair.decided), 11) for course in courses]
        return [(index + 1, course[index].promotes) for index, course in zip(last, courses, strict=True)]

    slower = ends(0.95)
    assert statistics.fmean(blocks for blocks, _ in slower) < 6
    assert not any(promoted for _, promoted in slower)
    assert sum(promoted for _, promoted in ends(1.06)) >= 90


def test_fewer_blocks_than_three_decide_nothing() -> None:
    """They say nothing about how they scatter, however far apart the sides are."""
    for ratio in (0.1, 0.5, 10.0):
        for pair in duet(ratio, 0.0, 0)[: LEAST_BLOCKS - 1]:
            assert not pair.decided
            assert not pair.promotes
            assert pair.verdict == "undecided"


@pytest.mark.parametrize(
    ("ratio", "half", "promoted"),
    [(1.05, 0.02, True), (1.03, 0.06, True), (1.24, 0.9, False), (1.005, 0.004, True), (1.005, 0.02, False)],
)
def test_luck_makes_no_incumbent(ratio: float, half: float, promoted: bool) -> None:
    """An undecided candidate must be expected to gain: what is hardly known counts for little."""
    interval = Interval(ratio * math.exp(-half), ratio * math.exp(half))
    assert Pair(partner=INCUMBENT, ratio=ratio, ci95=interval, blocks=9).promotes is promoted


@pytest.mark.parametrize(
    ("taken", "kept"),
    [([0.0, 0.5, 0.0, 0.02], [0, 2, 3]), ([0.5, 0.5, 0.52], [0, 1, 2]), ([0.08, 0.0], [0, 1]), ([], [])],
)
def test_spans_that_others_disturbed_are_left_out(taken: list[float], kept: list[int]) -> None:
    """By comparison with most: on a machine that is always busy all count."""
    assert bearable(taken) == kept


def test_a_tick_that_was_counted_late_is_no_disturbance() -> None:
    """The system counts in ticks of 10 ms: in a block of 50 ms one of them is much, in a second it is not."""
    taken = [0.0, 0.15, 0.0, 0.0]
    assert bearable(taken, span_seconds=1.0) == [0, 2, 3]
    assert bearable(taken, span_seconds=0.02 / os.cpu_count()) == [0, 1, 2, 3]


def beside_others(*rounds: tuple[float, float]) -> list[dict[Point, Measurement]]:
    """Rounds of a baseline with these rates, and these shares of the CPUs taken by others; the candidate's is 2,000."""

    def measured(rate: float, foreign: float) -> Measurement:
        return make_measurement(rate, telemetry=TelemetrySummary(seconds=1.0, foreign_cpu_fraction=foreign))

    return [{INCUMBENT: measured(rate, foreign), CANDIDATE: measured(2000.0, foreign)} for rate, foreign in rounds]


def test_a_round_in_which_a_neighbour_struck_does_not_count() -> None:
    """The baseline lost all its speed to somebody else; three rounds were quiet."""
    rounds = beside_others((1000.0, 0.0), (1010.0, 0.01), (100.0, 0.5), (990.0, 0.0))
    assert len(Rounds(rounds).of_both(INCUMBENT, CANDIDATE)) == 3
    speedup = speedup_in(rounds, INCUMBENT, CANDIDATE)
    assert speedup.pairs == 3
    assert speedup.ratio == pytest.approx(2.0, rel=0.02)


def test_rounds_beside_a_neighbour_count_where_too_few_others_are_left() -> None:
    """Of four rounds two were quiet, of which no finding could be made: twice the speed is one with all four."""
    rounds = beside_others((1000.0, 0.0), (1010.0, 0.0), (980.0, 0.4), (990.0, 0.4))
    speedup = speedup_in(rounds, INCUMBENT, CANDIDATE)
    assert (speedup.pairs, speedup.confirmed) == (4, True)
