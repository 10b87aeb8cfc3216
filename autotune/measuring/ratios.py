"""Ratios of configs that trained the same samples in turn: when they are warm, and how sure their ratio is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autotune.measuring.records import Measurement

LAGS_SHARE = 3
"""Neighbouring blocks correlate (0.1 to 0.3 was seen): up to the n-th root of so many of n blocks are looked at."""


def warm_up_length(ratios: Sequence[float]) -> int:
    """How many ratios at the beginning still move, by MSER: the cut that makes the mean of the rest most certain.

    At most half of them (White, *An effective truncation heuristic for bias reduction in simulation output*, 1997).
    Noise that both sides share has cancelled, so that a side that still warms up shows within a few blocks.

    Args:
        ratios: Logarithms of the ratio, in the order in which they were measured.
    """
    if len(ratios) < 4:
        return 0
    cuts = range(len(ratios) // 2 + 1)
    return min(cuts, key=lambda cut: statistics.pvariance(ratios[cut:]) / (len(ratios) - cut))


def log_ratio(before: Measurement, after: Measurement) -> tuple[float, float]:
    """The logarithm of the second's rate over the first's, and its standard error within one pair of processes.

    The rate is samples over seconds. The error is that of a ratio of two sums over paired blocks (Cochran, *Sampling
    Techniques*, 6.4), with the correlation of neighbouring blocks (Newey and West 1987).

    Args:
        before: The first's blocks; those of the second with the same index were trained next to them.
        after: The second's.
    """
    centre = math.log(after.samples_per_second / before.samples_per_second)
    pairs = list(zip(before.block_seconds, after.block_seconds, strict=False))
    if len(pairs) < 2 or len(before.blocks) != len(after.blocks):
        return centre, math.inf
    mine, theirs = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    residuals = [a / mine - b / theirs for a, b in pairs]
    count = len(residuals)
    lags = math.floor(count ** (1 / LAGS_SHARE))
    variance = math.fsum(value * value for value in residuals) / count
    for lag in range(1, lags + 1):
        products = math.fsum(x * y for x, y in zip(residuals, residuals[lag:], strict=False)) / count
        variance += 2 * (1 - lag / (lags + 1)) * products
    return centre, math.sqrt(max(variance, 0.0) / (count - 1))
