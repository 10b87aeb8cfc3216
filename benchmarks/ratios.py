"""Intervals of figures that a benchmark measured in pairs: by Student's t, and by resampling."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel

from autotune.measuring.records import Point
from autotune.measuring.speedup import Round, Rounds, Speedup
from autotune.measuring.statistics import Interval, student_t

RESAMPLES, BISECTIONS = 1000, 50


class Ratio(BaseModel):
    """A ratio with its 95 % interval."""

    ratio: float
    ci95: Interval

    def overlaps(self, other: Ratio) -> bool:
        """Whether the two intervals have a value in common."""
        return self.ci95.low <= other.ci95.high and other.ci95.low <= self.ci95.high

    def __str__(self) -> str:
        return f"{self.ratio:.3f} × ({self.ci95.low:.3f} – {self.ci95.high:.3f})"


def paired_ratio(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """Geometric mean of the pairs' ratios, after over before, with Student's t interval of their logarithms."""
    logs = [math.log(new / old) for old, new in zip(before, after, strict=True)]
    centre = statistics.fmean(logs)
    half = student_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(ratio=math.exp(centre), ci95=Interval(math.exp(centre - half), math.exp(centre + half)))


def speedup_in(rounds: Sequence[Round], before: Point, after: Point, **options: Any) -> Speedup:
    """Speed-up of one point over another; `options` are those of `Rounds` and of its `speedup`.

    Raises:
        RuntimeError: No round holds both points.
    """
    among = options.pop("among", 1)
    speedup = Rounds(rounds, **options).speedup(before, after, among=among)
    if speedup is None:
        raise RuntimeError(f"expected a round that holds both points, got {len(rounds)} without")
    return speedup


def share_interval(count: int, total: int) -> Interval:
    """95 % interval of a share that was counted (Clopper and Pearson, *Biometrika* 1934): never too narrow."""

    def chance_of_at_most(most: int, share: float) -> float:
        return math.fsum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(most + 1))

    def falls_to(chance: float, most: int) -> float:
        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if chance_of_at_most(most, middle) > chance else (low, middle)
        return low

    return Interval(falls_to(0.975, count - 1) if count else 0.0, falls_to(0.025, count) if count < total else 1.0)


def bootstrap_interval(
    values: Sequence[Any], statistic: Callable[[Sequence[Any]], float], *, seed: int = 0
) -> Interval:
    """95 % percentile bootstrap interval (Efron & Tibshirani 1993); deterministic for a seed."""
    rng = random.Random(seed)
    resampled = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Interval(resampled[round(0.025 * RESAMPLES)], resampled[round(0.975 * RESAMPLES) - 1])
