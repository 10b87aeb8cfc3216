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
from autotune.measuring.statistics import Interval, KnownInterval, student_t
from autotune.measuring.telemetry_summary import bearable
from autotune.stored import Figure, Seconds, Stored, Whole

EARLY_END_ALLOWANCE = 1.15
"""Rounds of a confirmation end once their interval is narrow, which favours rounds that agree by chance. Simulated
with 2 to 5 % noise a pair, a plain t interval then holds the truth in 92 to 95 % of cases: a wider one makes up for
it."""
FEWEST_PAIRS = 3
"""Of processes, for a finding: two have one degree of freedom, and an interval such as 0.130 – 26.7."""
PROCESS_SPREAD = 0.015
"""Of the logarithm of a ratio, which no pair of processes knows of: five pairs that lived side by side for a minute
differed by as much, and no more than the noise of their turns explained."""
BEYOND_DOUBT = 1.5
"""A gain must lie this many half-widths of its 95 % interval above 1. Of 600 whole searches of a made-up surface with
no gain, whose processes differ by 1, 5 and 10 %, 2 confirm one with 1.5, 2 with 1.35 and 7 with 1.0
(``python -m benchmarks.aa_policy --made-up``)."""
OTHERS_DEGREES = 4
"""Of freedom, at most, that the scatter of other points is worth beside that of two, where the two scatter less: they
must not look certain because they agree by chance. Chosen: processes of one workload scatter alike, but in eleven of
twelve races of three points or more the baseline and a finalist did so by more than all points in the mean, by 15 %."""


FEWEST_FOR_SPREADS = 5
"""Pairs from which on the spread between processes is told apart by side: of four, one side's is often below 0 by
chance. Not tuned."""


class Uninterrupted(Stored):
    """Both configs in one long run each, one after the other: turns share caches and clocks, training does not."""

    ratio: Figure = Field(gt=0, description="of the scores of the two runs")
    seconds: tuple[Seconds, Seconds] = Field(description="timed, before and after")
    expected: KnownInterval = Field(
        description="where the ratio of two single runs lies with 95 %, by the rounds: what varies from process to "
        "process, and from minute to minute, included"
    )

    @property
    def agrees(self) -> bool:
        """Whether the two runs differ as the rounds say."""
        return self.expected.low <= self.ratio <= self.expected.high


class Speedup(Stored):
    """A ratio of scores, which are rates unless another objective was asked for, of processes that trained in turn."""

    ratio: Figure = Field(gt=0)
    ci95: KnownInterval
    pairs: Whole = Field(description="pairs of processes")
    blocks: tuple[Whole, ...] = Field(
        default=(), description="paired blocks of each pair of processes; empty where whole bursts alternated"
    )
    epochs: Figure | None = Field(
        default=None, description="that each side trained while it was timed, in all rounds; null: endless"
    )
    spreads: tuple[Figure, Figure] | None = Field(
        default=None,
        description="standard deviation of the logarithm of the rate from process to process, before and after; null: "
        "too few pairs to tell",
    )
    anytime: bool = Field(
        default=False,
        description="the interval holds at every look at the pairs, which are blocks of one training: it was tuned "
        "while it ran",
    )
    uninterrupted: Uninterrupted | None = Field(
        default=None,
        description="the check by one long run of each; where that falls short, ratio and ci95 are its own",
    )

    @property
    def confirmed(self) -> bool:
        """Whether there are pairs enough, and 1 lies well below the interval: the tuned config is faster."""
        beyond = 1.0 if self.anytime else BEYOND_DOUBT
        return self.pairs >= FEWEST_PAIRS and self.ratio * (self.ci95.low / self.ratio) ** beyond > 1.0


def speedup_in(
    rounds: Sequence[Mapping[Point, Measurement]],
    before: Point,
    after: Point,
    objective: Objective = SAMPLES_PER_SECOND,
    *,
    among: int = 1,
) -> Speedup:
    """Speed-up of one point over another, with a 95 % interval, from the rounds that hold both.

    Each round is a fresh process for every point, and all trained the same samples in turn. What varies between
    processes (addresses, huge pages) is in the residuals of points and rounds, a randomised block design: the interval
    is Student's t of what the two themselves scatter, moderated by the other points of the same rounds where those
    scatter more (Smyth, *Statistical Applications in Genetics and Molecular Biology*, 2004). It is never narrower than
    what the blocks inside the rounds scatter (Kalibera and Jones, ISMM 2013: repeat at the level where the variance
    arises). Rounds in which others took notably more of the CPUs than in most are left out (`comparable`).

    Args:
        rounds: What was measured in each.
        before: The point that the other one is compared with.
        after: That one.
        objective: What is compared.
        among: The points among which the faster one is chosen: the intervals of all hold at once (Bonferroni).

    Raises:
        ValueError: With fewer than two rounds there is no spread to judge by.
    """
    common = comparable(rounds, before, after)
    if len(common) < 2:
        raise ValueError(f"expected 2 rounds or more for an interval, got {len(common)}")
    points = [point for point in common[0] if all(point in measured for measured in common)]
    logs = [[_log_score(measured[point], objective) for point in points] for measured in common]
    first, second = points.index(before), points.index(after)
    differences = [row[second] - row[first] for row in logs]
    centre = statistics.fmean(differences)
    degrees = len(common) - 1
    tail = 0.025 / among
    own = statistics.variance(differences, centre)
    others = 2 * _variance_of_others(logs, own)
    borrowed = min(OTHERS_DEGREES, degrees * (len(points) - 2)) if others > own else 0
    both = (degrees * own + borrowed * others) / (degrees + borrowed)
    between = student_t(degrees + borrowed, tail) * math.sqrt(both / len(common))
    errors = [block_error(measured[before], measured[after], objective.costs) for measured in common]
    of_rounds = math.sqrt(math.fsum(error**2 for error in errors if error is not None)) / len(common)
    within = NormalDist().inv_cdf(1 - tail) * of_rounds
    half = EARLY_END_ALLOWANCE * max(between, within)
    interval = Interval(math.exp(centre - half), math.exp(centre + half))
    pairs = [(measured[before], measured[after]) for measured in common]
    blocks = tuple(len(mine.blocks) for mine, _ in pairs) if all(paired(*pair) for pair in pairs) else ()
    return Speedup(
        ratio=math.exp(centre),
        ci95=interval,
        pairs=len(common),
        blocks=blocks,
        epochs=_epochs([one for one, _ in pairs]),
        spreads=_spreads([row[first] for row in logs], [row[second] for row in logs]),
    )


def checked_by(
    speedup: Speedup,
    rounds: Sequence[Mapping[Point, Measurement]],
    before: Point,
    after: Point,
    runs: tuple[Measurement, Measurement],
    objective: Objective = SAMPLES_PER_SECOND,
) -> Speedup:
    """A speed-up beside what one uninterrupted run of each config says; the lower of the two where they disagree.

    Args:
        speedup: By turns.
        rounds: That it comes from.
        before: The point that the other one is compared with.
        after: That one.
        runs: Their uninterrupted runs.
        objective: What is compared.
    """
    common = comparable(rounds, before, after)
    scores = [[_log_score(one[point], objective) for one in common] for point in (before, after)]
    of_one_run = math.fsum(statistics.variance(side) for side in scores)
    deviation = math.sqrt(of_one_run * (1 + 1 / len(common)))
    half = student_t(len(common) - 1) * deviation
    ratio = math.exp(_log_score(runs[1], objective) - _log_score(runs[0], objective))
    expected = Interval(speedup.ratio * math.exp(-half), speedup.ratio * math.exp(half))
    seconds = runs[0].measure_seconds, runs[1].measure_seconds
    run = Uninterrupted(ratio=ratio, seconds=seconds, expected=expected)
    update: dict[str, object] = {"uninterrupted": run}
    if ratio < expected.low:
        update |= {"ratio": ratio, "ci95": Interval(ratio * math.exp(-half), ratio * math.exp(half))}
    return speedup.model_copy(update=update)


def _epochs(measured: Sequence[Measurement]) -> float | None:
    """How often some timed blocks hold all samples of an epoch."""
    epoch = measured[0].epoch_samples
    return sum(block.samples for one in measured for block in one.blocks) / epoch if epoch else None


def _spreads(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The standard deviation of each of two sides from process to process, without what both share.

    The machine's speed of the moment is in both sides of a round, and so in their covariance, which is taken out of
    each side's variance (Grubbs, *On estimating precision of measuring instruments and product variability*, JASA
    1948).

    Args:
        before: Logarithms of the scores of one side, a round each.
        after: Of the other.
    """
    if len(before) < FEWEST_FOR_SPREADS:
        return None
    shared = max(0.0, statistics.covariance(before, after))
    mine, theirs = (math.sqrt(max(0.0, statistics.variance(side) - shared)) for side in (before, after))
    return mine, theirs


def best_round_seconds(
    rounds: Sequence[Mapping[Point, Measurement]],
    before: Point,
    after: Point,
    objective: Objective,
    start_seconds: float,
) -> float | None:
    """How long each point should be timed in a round, for the narrowest interval after the same time.

    The longer, the less of a round is lost to starts; the shorter, the more processes there are, and with them the
    variance between processes shrinks: sqrt(start cost x variance of blocks / variance between processes) (Kalibera and
    Jones, *Rigorous Benchmarking in Reasonable Time*, ISMM 2013, section 6).

    Args:
        rounds: So far.
        before: One of the two points.
        after: The other one.
        objective: What is compared.
        start_seconds: What a process costs before it is timed.

    Returns:
        Seconds; None where too few rounds tell.
    """
    common = comparable(rounds, before, after)
    known = [(block_error(one[before], one[after], objective.costs), one) for one in common]
    errors = [(error**2, one[after].measure_seconds) for error, one in known if error is not None]
    if len(errors) < FEWEST_PAIRS:
        return None
    logs = [_log_score(one[after], objective) - _log_score(one[before], objective) for one in common]
    of_blocks = statistics.fmean(error * seconds for error, seconds in errors)  # of one second
    between = statistics.variance(logs) - statistics.fmean(error for error, _ in errors)
    return math.sqrt(start_seconds * of_blocks / max(between, PROCESS_SPREAD**2))


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


def _log_score(measured: Measurement, objective: Objective) -> float:
    return math.log(objective.score(measured) or math.nan)


def _variance_of_others(logs: Sequence[Sequence[float]], own: float) -> float:
    """Of a table of rounds by points: of what is left of each value without its round's and its point's mean.

    Args:
        logs: The table.
        own: The variance of the difference of two of the points, which is not counted again.
    """
    rounds, points = len(logs), len(logs[0])
    if points < 3:
        return 0.0
    of_rounds = [statistics.fmean(row) for row in logs]
    of_points = [statistics.fmean(column) for column in zip(*logs, strict=True)]
    grand = statistics.fmean(of_rounds)
    residuals = (
        value - of_round - of_point + grand
        for row, of_round in zip(logs, of_rounds, strict=True)
        for value, of_point in zip(row, of_points, strict=True)
    )
    squares = math.fsum(residual**2 for residual in residuals) - (rounds - 1) * own / 2
    return max(0.0, squares) / ((rounds - 1) * (points - 2))
