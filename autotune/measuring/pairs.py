"""Pairs: how a candidate did against the incumbent, in turn, and what follows from that while they still play."""

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
"""Of which something follows: by themselves, and where duets before have shown how blocks scatter."""
UNKNOWN = 3.0
"""Fewer blocks say nothing about how they scatter: their ratio may be off by this factor. Chosen."""
KNOWN_WIDTH = 0.02
"""A ratio that is known to ± this share is known well enough for a search: processes of one config differ by more."""
WORTH_KEEPING, USUAL_GAIN = 0.01, 0.05
"""An undecided candidate takes the incumbent's place when it is expected to gain so much, where changes usually gain or
lose 5 %. Chosen: several gains of a few per cent each would else be lost; but luck must not make incumbents."""
HOPELESS = 0.2
"""A candidate is let go when it is worth keeping by a smaller chance. Simulated with 4 % of noise a block: what is 5 %
slower then costs 4 blocks (9, were it played until an interval says so), and of what gains 6 % two of a hundred go."""
STANDARD_ERRORS = 3.0
"""Of which an interval that holds at every look is made, either way, about."""
ERROR_RATE = 0.05
NORMAL_975 = NormalDist().inv_cdf(1 - ERROR_RATE / 2)
SIMULATED = 1.1
"""An asymptotic interval is too narrow for few blocks: so much wider, five of a hundred duets of equals are called
different within thirty looks (simulated, tests/measuring/test_pair_verdicts.py)."""
APART_ERROR = 0.1
"""What a ratio of two bursts that ran one after the other may be off by, either way: one config's bursts were measured
to differ by as much on a shared machine."""
TUNED_FOR = 10
"""Blocks at which the interval that holds at every look is narrowest, against its form for other counts."""


class Pair(Stored):
    """A candidate's score over that of the incumbent that it trained beside."""

    partner: Point = Field(description="the incumbent")
    ratio: Figure = Field(gt=0)
    ci95: KnownInterval
    blocks: Whole = Field(description="paired blocks; 0 where whole bursts ran one after the other")

    @property
    def too_few(self) -> bool:
        """Whether there are pairs of blocks, but so few that nothing is known of how they scatter."""
        return 0 < self.blocks < LEAST_BLOCKS and self.doubt > 0.99 * math.log(UNKNOWN)

    @property
    def verdict(self) -> Verdict:
        """What is beyond doubt."""
        if self.too_few:
            return "undecided"
        if self.ci95.low > 1:
            return "faster"
        return "slower" if self.ci95.high < 1 else "undecided"

    @property
    def doubt(self) -> float:
        """By what the logarithm of the ratio may be off, either way."""
        return math.log(self.ci95.high / self.ci95.low) / 2

    @property
    def error(self) -> float:
        """The standard error of the logarithm of the ratio, about; above 0 where blocks agree to the last digit."""
        return max(self.doubt / STANDARD_ERRORS, 1e-6)

    @property
    def decided(self) -> bool:
        """Whether more blocks would change nothing that matters: beyond doubt, hopeless, or known well enough."""
        if self.too_few:
            return False
        hopeless = 1 - self._gain.cdf(WORTH_KEEPING) < HOPELESS
        return self.verdict != "undecided" or hopeless or self.doubt <= KNOWN_WIDTH

    @property
    def promotes(self) -> bool:
        """Whether the candidate takes the incumbent's place."""
        if self.too_few or self.verdict != "undecided":
            return self.verdict == "faster"
        return self._gain.mean >= WORTH_KEEPING

    @property
    def _gain(self) -> NormalDist:
        """What the logarithm of the ratio is believed to be: what was measured, and what changes usually gain."""
        weight = USUAL_GAIN**2 / (USUAL_GAIN**2 + self.error**2)
        return NormalDist(weight * math.log(self.ratio), math.sqrt(weight) * self.error)

    def scaled(self, factor: float) -> Pair:
        """The same pair by another objective, which is in proportion to the rate."""
        ends = Interval(factor * self.ci95.low, factor * self.ci95.high)
        return self.model_copy(update={"ratio": factor * self.ratio, "ci95": ends})


def pair_of(
    partner: Point, incumbent: Sequence[float], candidate: Sequence[float], scatter: Scatter | None = None
) -> Pair | None:
    """What paired blocks say so far; None while there are none.

    The interval may be looked at after every block: it is an asymptotic confidence sequence (Waudby-Smith et al.,
    *Time-uniform central limit theory and asymptotic confidence sequences*, Annals of Statistics 2024, from the
    boundaries of Howard et al., 2021), with Student's t where blocks are few.

    Args:
        partner: The incumbent.
        incumbent: Its seconds in each block.
        candidate: The candidate's, which trained the same samples.
        scatter: What the duets before have shown of the noise; None: nothing is known.
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
    """What two bursts say that ran one after the other."""
    interval = Interval(ratio * math.exp(-APART_ERROR), ratio * math.exp(APART_ERROR))
    return Pair(partner=partner, ratio=ratio, ci95=interval, blocks=0)


def _at_every_look(count: int) -> float:
    """Standard errors of an interval that holds at every look, after so many blocks."""
    scale = (-2 * math.log(ERROR_RATE) + math.log(-2 * math.log(ERROR_RATE)) + 1) / TUNED_FOR
    information = count * scale
    return math.sqrt(2 * (information + 1) / information * math.log(math.sqrt(information + 1) / ERROR_RATE))
