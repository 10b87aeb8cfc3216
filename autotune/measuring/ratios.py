"""Ratios of configs that trained the same samples in turn: when they are warm, and how sure their ratio is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autotune.measuring.records import Measurement

FEWEST_TO_CUT = 10
"""Of fewer ratios the cut that looks best is chosen by chance, and costs more certainty than the beginning does wrong:
with five, rounds of ten workloads were 9 % off in the mean with a cut, and 5 % without (`benchmarks.warm_up`)."""
LAGS_ROOT = 3
"""Neighbouring blocks correlate (0.1 to 0.3 was seen): of n blocks, this root of n are looked at together."""


def warm_up_length(ratios: Sequence[float]) -> int:
    """How many ratios at the beginning still move, by MSER: the cut that makes the mean of the rest most certain.

    At most half of them (White, *An effective truncation heuristic for bias reduction in simulation output*, 1997).
    Noise that both sides share has cancelled, so that a side that still warms up shows within a few blocks.

    Args:
        ratios: Logarithms of the ratio, in the order in which they were measured.
    """
    if len(ratios) < FEWEST_TO_CUT:
        return 0
    cuts = range(len(ratios) // 2 + 1)
    return min(cuts, key=lambda cut: statistics.pvariance(ratios[cut:]) / (len(ratios) - cut))


def block_error(before: Measurement, after: Measurement) -> float | None:
    """The standard error of the logarithm of a ratio of two rates, within one pair of processes.

    Args:
        before: The first's blocks; those of the second with the same index were trained next to them.
        after: The second's.

    Returns:
        None where the blocks are no pairs: whole bursts that ran one after the other.
    """
    if len(before.blocks) < 2 or not paired(before, after):
        return None
    return ratio_error(before.block_seconds, after.block_seconds)


def paired(before: Measurement, after: Measurement) -> bool:
    """Whether the blocks of two measurements are pairs: as many, of the same samples."""
    return [block.samples for block in before.blocks] == [block.samples for block in after.blocks]


def ratio_error(before: Sequence[float], after: Sequence[float]) -> float:
    """The standard error of the logarithm of a ratio of two sums over paired blocks (Cochran, *Sampling*, 6.4).

    With the correlation of neighbouring blocks (Newey and West 1987).

    Args:
        before: Seconds of each block, two at least.
        after: Of its partner, which trained the same samples.
    """
    count = len(before)
    mine, theirs = statistics.fmean(before), statistics.fmean(after)
    residuals = [a / mine - b / theirs for a, b in zip(before, after, strict=True)]
    lags = math.floor(count ** (1 / LAGS_ROOT))
    alone = math.fsum(value**2 for value in residuals) / count
    variance = alone
    for lag in range(1, lags + 1):
        products = math.fsum(x * y for x, y in zip(residuals, residuals[lag:], strict=False)) / count
        variance += 2 * (1 - lag / (lags + 1)) * products
    # Of few blocks, correlations that look negative are chance: they must not make an interval narrow.
    return math.sqrt(max(variance, alone) / (count - 1))
