"""Speed-ups: ratios of scores from paired measurements, each with its interval."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from statistics import NormalDist

from pydantic import Field

from autotune.measuring.objective import SAMPLES_PER_SECOND, Objective
from autotune.measuring.records import Measurement
from autotune.measuring.statistics import BOOTSTRAP_RESAMPLES, Interval, KnownInterval, student_t_975
from autotune.stored import Figure, Stored, Whole

EARLY_END_ALLOWANCE = 1.15
"""Rounds of a confirmation end once their interval is narrow, which favours rounds that agree by chance. Simulated
with 2 to 5 % noise a pair, a plain t interval then holds the truth in 92 to 95 % of cases: a wider one makes up for
it."""


class Speedup(Stored):
    """A ratio of scores, which are rates unless another objective was asked for, from paired, interleaved bursts."""

    ratio: Figure = Field(gt=0)
    ci95: KnownInterval
    pairs: Whole

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


def paired_speedup(
    pairs: Sequence[tuple[Measurement, Measurement]], objective: Objective = SAMPLES_PER_SECOND
) -> Speedup:
    """Speed-up of the second of each pair over the first, with a 95 % interval: the ratio of their scores.

    Each pair was run back to back in fresh processes, so what varies between processes and over time is
    in the spread of the pairs' log ratios; the interval is Student's t of those, widened to the bootstrap
    over pairs and blocks where that is wider (Kalibera & Jones, ISMM 2013: repeat at the level where the
    variance arises). A bootstrap alone is too narrow for the four or five pairs that a budget allows.

    Raises:
        ValueError: With fewer than two pairs there is no spread to judge by.
    """
    if len(pairs) < 2:
        raise ValueError(f"at least 2 pairs are needed for an interval, {len(pairs)} came")
    scores = [(objective.block_scores(before), objective.block_scores(after)) for before, after in pairs]
    logs = [math.log(statistics.median(after) / statistics.median(before)) for before, after in scores]
    centre = statistics.fmean(logs)
    half = EARLY_END_ALLOWANCE * student_t_975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    rng = random.Random(0)
    resampled = sorted(_resampled_log_ratio(scores, rng) for _ in range(BOOTSTRAP_RESAMPLES))
    low = min(centre - half, resampled[round(0.025 * BOOTSTRAP_RESAMPLES)])
    high = max(centre + half, resampled[round(0.975 * BOOTSTRAP_RESAMPLES) - 1])
    return Speedup(ratio=math.exp(centre), ci95=Interval(math.exp(low), math.exp(high)), pairs=len(pairs))


def _resampled_log_ratio(pairs: Sequence[tuple[list[float], list[float]]], rng: random.Random) -> float:
    """One draw of the two-level bootstrap: pairs first, then the blocks inside them."""
    logs = []
    for before, after in rng.choices(pairs, k=len(pairs)):
        slow, fast = (statistics.median(rng.choices(scores, k=len(scores))) for scores in (before, after))
        logs.append(math.log(fast / slow))
    return statistics.fmean(logs)
