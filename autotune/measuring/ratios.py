"""Ratios of configs that trained the same samples in turn: when they are warm, and how sure their ratio is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from autotune.measuring.records import Measurement

FEWEST_TO_CUT = 10
"""Fewer ratios are not cut: chance would pick the cut, and that costs more certainty than a warm-up does. With five
ratios, rounds of ten workloads were 9 % off in the mean with a cut, and 5 % without (`benchmarks.warm_up`)."""
LAGS_ROOT = 3
"""Neighbouring blocks correlate (by 0.1 to 0.3): with n blocks, correlations up to this root of n are included."""
BORROWED_DEGREES = 4
"""Degrees of freedom that earlier duets of a run add to the noise of a block. By Smyth's estimate (below), the noise of
eleven duets of two workloads, which differed by 0.35 in the logarithm, would be worth 5 to 6."""


class Scatter:
    """How much the ratios of blocks have scattered in the duets of a run so far, which its next duet can borrow.

    Three blocks hardly show how they scatter. On its own, a duet needs ten blocks to make a difference of a third
    certain. Moderated by earlier duets (Smyth, *Linear models and empirical Bayes methods*, 2004), it needs three or
    four.
    """

    def __init__(self) -> None:
        self._squares, self._degrees = 0.0, 0

    def add(self, before: Sequence[float], after: Sequence[float]) -> None:
        """Adds a duet that has ended; one of a single block is ignored."""
        count = len(before)
        if count > 1:
            self._squares += (count - 1) * count * ratio_error(before, after) ** 2
            self._degrees += count - 1

    @property
    def is_known(self) -> bool:
        """Whether the duets so far have as many degrees of freedom as can be borrowed."""
        return self._degrees >= BORROWED_DEGREES

    def error(self, before: Sequence[float], after: Sequence[float]) -> tuple[float, int]:
        """The moderated `ratio_error`, and its degrees of freedom."""
        count = len(before)
        alone = ratio_error(before, after)
        if not self._degrees:
            return alone, count - 1
        borrowed = min(BORROWED_DEGREES, self._degrees)
        degrees = borrowed + count - 1
        variance = (borrowed * self._squares / self._degrees + (count - 1) * count * alone**2) / degrees
        return math.sqrt(variance / count), degrees


def warm_up_length(ratios: Sequence[float]) -> int:
    """How many ratios at the beginning still move, by MSER: the cut that makes the mean of the rest most certain.

    At most half of them (White, *An effective truncation heuristic for bias reduction in simulation output*, 1997).
    Noise that both sides share has cancelled, so a side that still warms up shows within a few blocks.

    Args:
        ratios: Logarithms of the ratio, in the order in which they were measured.
    """
    if len(ratios) < FEWEST_TO_CUT:
        return 0
    cuts = range(len(ratios) // 2 + 1)
    return min(cuts, key=lambda cut: statistics.pvariance(ratios[cut:]) / (len(ratios) - cut))


def block_error(
    before: Measurement,
    after: Measurement,
    costs: Callable[[Measurement], Sequence[float] | None] = lambda measured: measured.block_seconds,
) -> float | None:
    """The standard error of the logarithm of a ratio of two rates, or scores, within one pair of processes.

    Args:
        before: The first measurement; blocks with the same index trained next to each other.
        after: The second one.
        costs: Cost of each block: seconds, for a rate.

    Returns:
        None where the blocks have no cost, or are not paired because whole bursts ran one after the other.
    """
    if len(before.blocks) < 2 or not paired(before, after):
        return None
    mine, theirs = costs(before), costs(after)
    return ratio_error(mine, theirs) if mine and theirs else None


def paired(before: Measurement, after: Measurement) -> bool:
    """Whether the blocks of two measurements are pairs: as many, with the same numbers of samples."""
    return [block.samples for block in before.blocks] == [block.samples for block in after.blocks]


def ratio_error(before: Sequence[float], after: Sequence[float]) -> float:
    """The standard error of the logarithm of a ratio of two sums over paired blocks (Cochran, *Sampling*, 6.4).

    It includes the correlation of neighbouring blocks (Newey and West 1987).

    Args:
        before: Seconds of each block, two at least.
        after: Seconds of its partner, which trained the same samples.
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
    # With few blocks, negative correlations are chance: they must not make an interval narrow.
    return math.sqrt(max(variance, alone) / (count - 1))
