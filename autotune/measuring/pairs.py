"""Pairs: a candidate compared with the incumbent in turns, and what follows while they still play."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

from pydantic import Field

from autotune.measuring.ratios import Scatter
from autotune.measuring.records import Point
from autotune.measuring.statistics import Interval, KnownInterval, student_t
from autotune.stored import Figure, Stored, Whole

Verdict = Literal["faster", "slower", "undecided"]
LEAST_BLOCKS, LEAST_WITH_SCATTER = 3, 2
"""Blocks that an interval needs: on their own, and where earlier duets have shown how blocks scatter."""
UNKNOWN = 3.0
"""With fewer blocks their scatter is unknown: the ratio may be off by this factor. Not tuned."""
KNOWN_WIDTH = 0.02
"""A ratio known to ± this share is precise enough for a search: processes of one config differ by more."""
WORTH_KEEPING, USUAL_GAIN = 0.01, 0.05
"""An undecided candidate replaces the incumbent when its expected gain reaches the first figure; the second is what
changes usually gain or lose. Not tuned: a higher bar loses several gains of a few per cent each, a lower one lets luck
make incumbents."""
HOPELESS = 0.2
"""A candidate is dropped when it is worth keeping by a smaller chance than this. Simulated with 4 % noise a block, one
that is 5 % slower costs 4 blocks (9 if played until an interval decides), and 2 % of those that gain 6 % drop out."""
STANDARD_ERRORS = 3.0
"""Approximate half-width of an interval that holds at every look, in standard errors."""
ERROR_RATE = 0.05
NORMAL_975 = NormalDist().inv_cdf(1 - ERROR_RATE / 2)
SIMULATED = 1.1
"""Widens the asymptotic interval, which is too narrow for few blocks: with it, 5 % of duets of equals are called
different within thirty looks (simulated, tests/measuring/test_pair_verdicts.py)."""
APART_ERROR = 0.1
"""Error of the ratio of two bursts that ran one after the other, either way: on a shared machine, bursts of one config
were measured to differ by as much."""
TUNED_FOR = 10
"""Number of blocks for which the interval that holds at every look is narrowest, among its possible forms."""


class Pair(Stored):
    """A candidate's score over that of the incumbent that it trained beside."""

    partner: Point = Field(description="the incumbent")
    ratio: Figure = Field(gt=0)
    ci95: KnownInterval
    blocks: Whole = Field(description="paired blocks; 0 where whole bursts ran one after the other")

    @property
    def too_few(self) -> bool:
        """Whether there are paired blocks, but too few to know how they scatter."""
        return 0 < self.blocks < LEAST_BLOCKS and self.doubt > 0.99 * math.log(UNKNOWN)

    @property
    def verdict(self) -> Verdict:
        """Whether the candidate is faster or slower, if that is certain."""
        if self.too_few:
            return "undecided"
        if self.ci95.low > 1:
            return "faster"
        return "slower" if self.ci95.high < 1 else "undecided"

    @property
    def doubt(self) -> float:
        """Half-width of the interval of the ratio's logarithm."""
        return math.log(self.ci95.high / self.ci95.low) / 2

    @property
    def error(self) -> float:
        """Approximate standard error of the ratio's logarithm; above 0 even where blocks agree to the last digit."""
        return max(self.doubt / STANDARD_ERRORS, 1e-6)

    @property
    def decided(self) -> bool:
        """Whether more blocks are pointless: the verdict is certain, a gain hopeless, or the ratio precise enough."""
        if self.too_few:
            return False
        hopeless = 1 - self._gain.cdf(WORTH_KEEPING) < HOPELESS
        return self.verdict != "undecided" or hopeless or self.doubt <= KNOWN_WIDTH

    @property
    def promotes(self) -> bool:
        """Whether the candidate replaces the incumbent."""
        if self.too_few or self.verdict != "undecided":
            return self.verdict == "faster"
        return self._gain.mean >= WORTH_KEEPING

    @property
    def _gain(self) -> NormalDist:
        """Belief about the ratio's logarithm: the measurement, combined with the usual gain of a change."""
        weight = USUAL_GAIN**2 / (USUAL_GAIN**2 + self.error**2)
        return NormalDist(weight * math.log(self.ratio), math.sqrt(weight) * self.error)

    def scaled(self, factor: float) -> Pair:
        """The same pair by another objective that is in proportion to the rate."""
        ends = Interval(factor * self.ci95.low, factor * self.ci95.high)
        return self.model_copy(update={"ratio": factor * self.ratio, "ci95": ends})


def pair_of(
    partner: Point, incumbent: Sequence[float], candidate: Sequence[float], scatter: Scatter | None = None
) -> Pair | None:
    """A pair from the blocks so far; None while there are none.

    You may look at the interval after every block: it is an asymptotic confidence sequence (Waudby-Smith et al.,
    *Time-uniform central limit theory and asymptotic confidence sequences*, Annals of Statistics 2024). It uses the
    boundaries of Howard et al. (2021), and Student's t where blocks are few.

    Args:
        partner: The incumbent.
        incumbent: Its seconds in each block.
        candidate: The candidate's seconds for the same samples.
        scatter: Noise that earlier duets have shown; None: not known.
    """
    count = len(candidate)
    if count == 0:
        return None
    ratio = math.fsum(incumbent) / math.fsum(candidate)
    scatter = scatter or Scatter()
    if count < (LEAST_WITH_SCATTER if scatter.is_known else LEAST_BLOCKS):
        return Pair(partner=partner, ratio=ratio, ci95=Interval(ratio / UNKNOWN, ratio * UNKNOWN), blocks=count)
    error, degrees = scatter.error(incumbent, candidate)
    few = student_t(degrees) / NORMAL_975
    half = SIMULATED * few * _at_every_look(count) * error
    interval = Interval(ratio * math.exp(-half), ratio * math.exp(half))
    return Pair(partner=partner, ratio=ratio, ci95=interval, blocks=count)


def pair_apart(partner: Point, ratio: float) -> Pair:
    """A pair from two bursts that ran one after the other."""
    interval = Interval(ratio * math.exp(-APART_ERROR), ratio * math.exp(APART_ERROR))
    return Pair(partner=partner, ratio=ratio, ci95=interval, blocks=0)


def _at_every_look(count: int) -> float:
    """Half-width of an interval that holds at every look, in standard errors, after `count` blocks."""
    scale = (-2 * math.log(ERROR_RATE) + math.log(-2 * math.log(ERROR_RATE)) + 1) / TUNED_FOR
    information = count * scale
    return math.sqrt(2 * (information + 1) / information * math.log(math.sqrt(information + 1) / ERROR_RATE))
