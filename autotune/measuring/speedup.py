"""Speed-ups: ratios of scores from rounds in which configs trained side by side, each with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from pydantic import Field

from autotune.measuring.objective import SAMPLES_PER_SECOND, Objective
from autotune.measuring.ratios import block_error, paired
from autotune.measuring.records import Measurement, Point
from autotune.measuring.statistics import Interval, KnownInterval, student_t_975
from autotune.measuring.telemetry_summary import bearable
from autotune.stored import Figure, Stored, Whole

EARLY_END_ALLOWANCE = 1.15
"""Rounds of a confirmation end once their interval is narrow, which favours rounds that agree by chance. Simulated
with 2 to 5 % noise a pair, a plain t interval then holds the truth in 92 to 95 % of cases: a wider one makes up for
it."""
FEWEST_PAIRS = 3
"""Of processes, for a finding: two have one degree of freedom, and an interval such as 0.130 – 26.7."""
OTHERS_DEGREES = 4
"""Of freedom, at most, that what other points scatter is worth beside what two points themselves do. Chosen: processes
of one workload scatter alike, but workers make them scatter more; in eleven of twelve races of three points or more the
baseline and a finalist did so by more than all points in the mean, by 15 %."""
NORMAL_975 = NormalDist().inv_cdf(0.975)


class Speedup(Stored):
    """A ratio of scores, which are rates unless another objective was asked for, of processes that trained in turn."""

    ratio: Figure = Field(gt=0)
    ci95: KnownInterval
    pairs: Whole = Field(description="pairs of processes")
    blocks: tuple[Whole, ...] = Field(
        default=(), description="paired blocks of each pair of processes; empty where whole bursts alternated"
    )

    @property
    def confirmed(self) -> bool:
        """Whether there are pairs enough, and the whole interval lies above 1: the tuned config is faster."""
        return self.pairs >= FEWEST_PAIRS and self.ci95.low > 1.0

    def best_of(self, count: int) -> Speedup:
        """The same ratio as one of so many that a choice is made among: an interval that holds for all at once.

        Bonferroni's correction, by the ratio of the normal distribution's quantiles.
        """
        factor = NormalDist().inv_cdf(1 - 0.025 / count) / NORMAL_975
        low = self.ratio * (self.ci95.low / self.ratio) ** factor
        high = self.ratio * (self.ci95.high / self.ratio) ** factor
        return self.model_copy(update={"ci95": Interval(low, high)})


def speedup_in(
    rounds: Sequence[Mapping[Point, Measurement]],
    before: Point,
    after: Point,
    objective: Objective = SAMPLES_PER_SECOND,
) -> Speedup:
    """Speed-up of one point over another, with a 95 % interval, from the rounds that hold both.

    Each round is a fresh process for every point, and all trained the same samples in turn. What varies between
    processes (addresses, huge pages) is in the residuals of points and rounds, a randomised block design: the interval
    is Student's t of what the two themselves scatter, moderated by what all points do that took part in the same rounds
    (Smyth, *Statistical Applications in Genetics and Molecular Biology*, 2004). It is never narrower than what the
    blocks inside the rounds scatter (Kalibera and Jones, ISMM 2013: repeat at the level where the variance arises).
    Rounds in which others took notably more of the CPUs than in most are left out (`comparable`).

    Raises:
        ValueError: With fewer than two rounds there is no spread to judge by.
    """
    common = comparable(rounds, before, after)
    if len(common) < 2:
        raise ValueError(f"expected 2 rounds or more for an interval, got {len(common)}")
    points = [point for point in common[0] if all(point in measured for measured in common)]
    logs = [[math.log(objective.score(measured[point]) or math.nan) for point in points] for measured in common]
    first, second = points.index(before), points.index(after)
    differences = [row[second] - row[first] for row in logs]
    centre = statistics.fmean(differences)
    degrees = len(common) - 1
    of_others = min(OTHERS_DEGREES, degrees * (len(points) - 2))
    both = degrees * statistics.variance(differences, centre) + of_others * 2 * _residual_variance(logs)
    between = student_t_975(degrees + of_others) * math.sqrt(both / (degrees + of_others) / len(common))
    errors = [block_error(measured[before], measured[after], objective.costs) for measured in common]
    within = NORMAL_975 * math.sqrt(math.fsum(error**2 for error in errors if error is not None)) / len(common)
    half = EARLY_END_ALLOWANCE * max(between, within)
    interval = Interval(math.exp(centre - half), math.exp(centre + half))
    pairs = [(measured[before], measured[after]) for measured in common]
    blocks = tuple(len(mine.blocks) for mine, _ in pairs) if all(paired(*pair) for pair in pairs) else ()
    return Speedup(ratio=math.exp(centre), ci95=interval, pairs=len(common), blocks=blocks)


def comparable(
    rounds: Sequence[Mapping[Point, Measurement]], before: Point, after: Point
) -> list[Mapping[Point, Measurement]]:
    """The rounds that hold both, but for those in which others took notably more of the CPUs than in most.

    All of them where too few for a finding would be left: their spread tells of the disturbance as well.
    """
    common = [measured for measured in rounds if before in measured and after in measured]
    summaries = [(measured[before].telemetry, measured[after].telemetry) for measured in common]
    taken = [max(one.taken_fraction if one is not None else 0.0 for one in pair) for pair in summaries]
    kept = bearable(taken)
    return [common[index] for index in kept] if len(kept) >= FEWEST_PAIRS else common


def _residual_variance(logs: Sequence[Sequence[float]]) -> float:
    """Of a table of rounds by points: what is left of each value without its round's and its point's mean."""
    degrees = (len(logs) - 1) * (len(logs[0]) - 1)
    of_rounds = [statistics.fmean(row) for row in logs]
    of_points = [statistics.fmean(column) for column in zip(*logs, strict=True)]
    grand = statistics.fmean(of_rounds)
    residuals = (
        value - of_round - of_point + grand
        for row, of_round in zip(logs, of_rounds, strict=True)
        for value, of_point in zip(row, of_points, strict=True)
    )
    return math.fsum(residual**2 for residual in residuals) / degrees
