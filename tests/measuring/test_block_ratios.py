"""When a ratio no longer moves, and how sure it is."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from autotune.measuring.ratios import block_error, warm_up_length
from autotune.measuring.records import Block, Measurement

SIMULATIONS = 300


def sides(blocks: int, rng: random.Random, *, shared: float, own: float) -> tuple[Measurement, Measurement]:
    """Two equal sides: noise that both share in each block, and noise of each block's own."""
    made: tuple[list[Block], list[Block]] = ([], [])
    for _ in range(blocks):
        common = math.exp(rng.gauss(0, shared))
        for side in made:
            seconds = common * math.exp(rng.gauss(0, own))
            side.append(Block(samples=100, seconds=seconds, data_wait_seconds=0))
    first, second = (
        Measurement(blocks=tuple(side), start_seconds=0, build_seconds=0, warmup_seconds=0) for side in made
    )
    return first, second


def test_a_side_that_warms_up_is_cut_off() -> None:
    """Five blocks that get faster do not count; what comes after does."""
    rng = random.Random(0)
    ratios = [0.4, 0.3, 0.2, 0.1, 0.05] + [rng.gauss(0, 0.01) for _ in range(12)]
    assert 4 <= warm_up_length(ratios) <= 8


def test_of_steady_ratios_most_are_kept() -> None:
    """Noise alone is no warm-up: on average little of it is lost."""
    rng = random.Random(1)
    cuts = [warm_up_length([rng.gauss(0, 0.02) for _ in range(12)]) for _ in range(SIMULATIONS)]
    assert statistics.fmean(cuts) < 3


def test_at_most_half_is_cut_off_and_nothing_of_very_few() -> None:
    """There must be something left to judge by."""
    assert warm_up_length([float(left) for left in range(9, 0, -1)]) == 0
    assert warm_up_length([float(left) for left in range(10, 0, -1)]) <= 5


def test_what_both_sides_share_cancels() -> None:
    """A neighbour that slows both sides by a tenth leaves the ratio's error at that of the blocks' own noise."""
    rng = random.Random(2)
    errors = [block_error(*sides(20, rng, shared=0.1, own=0.01)) or math.inf for _ in range(50)]
    assert statistics.median(errors) < 0.005


def test_the_error_covers_what_the_ratio_scatters() -> None:
    """Of many ratios of equal sides, about 95 in 100 lie within 1.96 errors of 1."""
    rng = random.Random(3)
    inside = 0
    for _ in range(SIMULATIONS):
        before, after = sides(20, rng, shared=0.1, own=0.03)
        error = block_error(before, after)
        assert error is not None
        inside += abs(math.log(after.samples_per_second / before.samples_per_second)) <= 1.96 * error
    assert 0.9 <= inside / SIMULATIONS <= 1.0


def test_blocks_of_other_samples_are_no_pairs() -> None:
    """Whole bursts, one after the other, have nothing in common to cancel."""
    before, after = sides(5, random.Random(4), shared=0, own=0)
    shorter = after.model_copy(update={"blocks": after.blocks[:4]})
    assert block_error(before, after) == pytest.approx(0, abs=1e-9)
    assert block_error(before, shorter) is None
