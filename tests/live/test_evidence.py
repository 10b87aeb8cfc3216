"""What pairs of blocks say of a candidate, at every look."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from autotune.recorder.live.evidence import FEWEST_PAIRS, MANY_PAIRS, MARGIN, MOST_PAIRS, Evidence, Spread


def judged(true_ratio: float, noise: float, generator: random.Random) -> tuple[str, int]:
    """The verdict on a candidate, and after how many pairs; the spread of this training is known."""
    spread = Spread()
    spread.add([generator.gauss(0.0, noise) for _ in range(20)])
    evidence = Evidence(spread)
    while (verdict := evidence.verdict) is None:
        evidence.add(1.0, math.exp(-math.log(true_ratio) + generator.gauss(0.0, noise)))
    return verdict, len(evidence.logs)


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_what_gains_no_more_than_the_margin_hardly_ever_wins(noise: float) -> None:
    """Of candidates right at the margin, over all looks."""
    generator = random.Random(0)
    verdicts = [judged(1 + MARGIN, noise, generator)[0] for _ in range(400)]
    assert verdicts.count("won") <= 8


@pytest.mark.parametrize(("ratio", "verdict"), [(1.5, "won"), (1.2, "won"), (1.0, "lost"), (0.7, "lost")])
def test_clear_candidates_are_decided(ratio: float, verdict: str) -> None:
    """Whichever way, long before the last pair."""
    generator = random.Random(1)
    found = [judged(ratio, 0.03, generator) for _ in range(50)]
    assert [one for one, _ in found].count(verdict) >= 49
    assert sorted(pairs for _, pairs in found)[25] < MOST_PAIRS if ratio != 1.0 else True


@pytest.mark.parametrize("seconds", [[4000.0, 250.0, 300.0], [100.0, 99.0, 101.0]])
def test_what_a_neighbour_may_have_done_wins_later(seconds: list[float]) -> None:
    """The ratio of few pairs is hardly known, or large: each block of one side may have been stalled, even alike."""
    evidence, stalled = Evidence(Spread()), itertools.cycle(seconds)
    for _ in range(FEWEST_PAIRS):
        evidence.add(next(stalled), 1.0)
    assert evidence.bounds[0] > 1 + MARGIN
    while evidence.verdict is None:
        evidence.add(next(stalled), 1.0)
    assert (evidence.verdict, len(evidence.logs)) == ("won", MANY_PAIRS)


def test_a_lucky_pair_wins_nothing() -> None:
    """Nor do two."""
    evidence = Evidence(Spread())
    for _ in range(FEWEST_PAIRS - 1):
        evidence.add(9.0, 1.0)
        assert evidence.verdict is None
