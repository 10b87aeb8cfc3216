"""Speed-ups: ratios of rates from paired measurements, each with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from statistics import NormalDist

from pydantic import BaseModel, ConfigDict, Field

from autotune.measuring.ratios import log_ratio
from autotune.measuring.records import Measurement
from autotune.measuring.statistics import Interval, student_t_975

NORMAL_975 = NormalDist().inv_cdf(0.975)

EARLY_END_ALLOWANCE = 1.15
"""Rounds of a confirmation end once their interval is narrow, which favours rounds that agree by chance. Simulated
with 2 to 5 % noise a pair, a plain t interval then holds the truth in 92 to 95 % of cases: a wider one makes up for
it."""


class Speedup(BaseModel):
    """A ratio of rates from paired, interleaved bursts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ratio: float = Field(gt=0)
    ci95: Interval
    pairs: int = Field(ge=0)

    @property
    def confirmed(self) -> bool:
        """Whether the whole interval lies above 1: the tuned config is faster."""
        return self.ci95.low > 1.0

    def best_of(self, count: int) -> Speedup:
        """The same ratio as one of so many that a choice is made among: an interval that holds for all at once.

        Bonferroni's correction, by the ratio of the normal distribution's quantiles.
        """
        factor = NormalDist().inv_cdf(1 - 0.025 / count) / NormalDist().inv_cdf(0.975)
        low = self.ratio * (self.ci95.low / self.ratio) ** factor
        high = self.ratio * (self.ci95.high / self.ratio) ** factor
        return self.model_copy(update={"ci95": Interval(low, high)})

    def widened(self, drift: float) -> Speedup:
        """The same ratio on a machine whose speed moved by this share: that spread is added, as one of each pair."""
        extra = math.log1p(drift) / math.sqrt(self.pairs)
        below = math.hypot(math.log(self.ratio / self.ci95.low), extra)
        above = math.hypot(math.log(self.ci95.high / self.ratio), extra)
        interval = Interval(self.ratio * math.exp(-below), self.ratio * math.exp(above))
        return self.model_copy(update={"ci95": interval})


def paired_speedup(pairs: Sequence[tuple[Measurement, Measurement]]) -> Speedup:
    """Speed-up of the second of each pair over the first, with a 95 % interval.

    Each pair is two fresh processes that trained the same samples in turn. What varies between processes (addresses,
    huge pages) is in the spread of the pairs' log ratios, and the interval is Student's t of those; it is never
    narrower than what the blocks inside the pairs scatter (Kalibera and Jones, ISMM 2013: repeat at the level where
    the variance arises).

    Raises:
        ValueError: With fewer than two pairs there is no spread to judge by.
    """
    if len(pairs) < 2:
        raise ValueError(f"expected 2 pairs or more for an interval, got {len(pairs)}")
    logs, errors = zip(*(log_ratio(before, after) for before, after in pairs), strict=True)
    centre = statistics.fmean(logs)
    between = student_t_975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    known = [error for error in errors if math.isfinite(error)]
    within = NORMAL_975 * math.sqrt(math.fsum(error**2 for error in known)) / len(logs)
    half = EARLY_END_ALLOWANCE * max(between, within)
    return Speedup(
        ratio=math.exp(centre), ci95=Interval(math.exp(centre - half), math.exp(centre + half)), pairs=len(pairs)
    )
