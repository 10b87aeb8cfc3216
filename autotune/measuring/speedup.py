"""Speed-ups: ratios of scores from rounds in which configs trained side by side, each with its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from pydantic import Field

from autotune.measuring.objective import SAMPLES_PER_SECOND, Objective
from autotune.measuring.ratios import block_error, paired
from autotune.measuring.records import Measurement, Point
from autotune.measuring.statistics import Interval, KnownInterval, deviation_bound
from autotune.measuring.telemetry_summary import SLOWDOWNS, bearable
from autotune.stored import Figure, Seconds, Stored, Whole

EARLY_END_ALLOWANCE = 1.15
"""Widens the interval: rounds of a confirmation end once it is narrow, which favours rounds that agree by chance.
Simulated with 2 to 5 % noise a pair, a plain t interval then holds the truth in 92 to 95 % of cases."""
PROCESS_SPREAD = 0.015
"""Least spread between pairs of processes, in the logarithm of the ratio; no single pair shows it. Five pairs that ran
side by side for a minute differed by as much, and no more than the noise of their turns explained."""
BEYOND_DOUBT = 1.35
"""A gain must lie this many half-widths of its 95 % interval above 1. Of 1,200 whole searches of a made-up surface with
no gain, a factor of 1.35 confirms 6, 1.5 confirms 5, and 1.0 confirms 14. Their processes differ by 1, 5 and 10 %, and
half of them have time for one to three rounds (``python -m benchmarks.aa_policy --made-up``)."""
FEWEST_FOR_NOISE = 3
"""Rounds from which the noise of rounds is estimated, and of which at least as many must stay when noisy ones are left
out. Not tuned."""
FEWEST_FOR_SPREADS = 5
"""Pairs that the spread between processes needs, for each side on its own: with four pairs, one side's is often below 0
by chance. Not tuned."""
RAN_FASTER = "the card ran faster"


class Uninterrupted(Stored):
    """One long run of each config, one after the other: turns share caches and clocks, your training does not."""

    ratio: Figure = Field(gt=0, description="of the scores of the two runs")
    seconds: tuple[Seconds, Seconds] = Field(description="timed, before and after")
    expected: KnownInterval = Field(
        description="95 % interval of the ratio of two single runs, from the rounds; includes what varies from process "
        "to process and from minute to minute"
    )

    @property
    def agrees(self) -> bool:
        """Whether the two runs differ as the rounds say."""
        return self.expected.low <= self.ratio <= self.expected.high


class Speedup(Stored):
    """A ratio of scores of processes that trained in turn; scores are rates unless you choose another objective."""

    ratio: Figure = Field(gt=0)
    ci95: KnownInterval
    pairs: Whole = Field(description="pairs of processes")
    blocks: tuple[Whole, ...] = Field(
        default=(), description="paired blocks of each pair of processes; empty where whole bursts alternated"
    )
    epochs: Figure | None = Field(
        default=None, description="epochs that each side trained while timed, in all rounds; null: endless"
    )
    spreads: tuple[Figure, Figure] | None = Field(
        default=None,
        description="standard deviation of the logarithm of the rate from process to process, before and after; null: "
        "too few pairs",
    )
    anytime: bool = Field(
        default=False,
        description="the interval holds at every look at the pairs, which are blocks of one training that was tuned "
        "while it ran",
    )
    uninterrupted: Uninterrupted | None = Field(
        default=None,
        description="the check by one long run of each; where they fall short, ratio and ci95 come from them",
    )

    @property
    def confirmed(self) -> bool:
        """Whether 1 lies well below the interval: the tuned config is faster."""
        beyond = 1.0 if self.anytime else BEYOND_DOUBT
        return bool(self.ratio * (self.ci95.low / self.ratio) ** beyond > 1.0)


Round = Mapping[Point, Measurement]
"""The measurements of one round: points that trained the same samples in turn, each in a fresh process."""


@dataclass(frozen=True)
class Rounds:
    """Rounds of a proof, which together show the speed-up of one point over another."""

    measured: Sequence[Round]
    objective: Objective = SAMPLES_PER_SECOND  # gives the score to compare

    def of_both(self, before: Point, after: Point) -> list[Round]:
        """The rounds that hold both points, except those in which other load took notably more CPU than in most.

        All rounds where fewer than `FEWEST_FOR_NOISE` would remain: their spread contains the disturbance as well.
        """
        common = [measured for measured in self.measured if before in measured and after in measured]
        taken = [max(measured[point].seen.taken_fraction for point in (before, after)) for measured in common]
        kept = bearable(taken)
        return [common[index] for index in kept] if len(kept) >= FEWEST_FOR_NOISE else common

    def speedup(self, before: Point, after: Point, *, among: int = 1) -> Speedup | None:
        """Speed-up of one point over another, with a 95 % interval; None without a round of both.

        Each round starts a fresh process for every point, and all train the same samples in turn: a randomised block
        design. The differences between rounds contain what varies between processes (addresses, huge pages). The
        interval comes from these, and from how much processes of other workloads differ (`deviation_bound`). It is
        never narrower than the scatter of the blocks inside the rounds (Kalibera and Jones, ISMM 2013: repeat at the
        level where the variance arises).

        Args:
            before: The reference point.
            after: The point compared with it.
            among: Number of points that the fastest is chosen from: the intervals of all hold at once (Bonferroni).
        """
        common = self.of_both(before, after)
        if not common:
            return None
        logs = [[self._log_score(measured[point]) for measured in common] for point in (before, after)]
        differences = [theirs - mine for mine, theirs in zip(*logs, strict=True)]
        centre = statistics.fmean(differences)
        tail = 0.025 / among
        own = statistics.stdev(differences) if len(common) > 1 else 0.0
        between = deviation_bound(own, len(common), tail) / math.sqrt(len(common))
        squares = [error**2 for error in self._block_errors(common, before, after) if error is not None]
        scatter = math.sqrt(statistics.fmean(squares) / len(common)) if squares else 0.0
        within = NormalDist().inv_cdf(1 - tail) * scatter
        half = EARLY_END_ALLOWANCE * max(between, within)
        interval = Interval(math.exp(centre - half), math.exp(centre + half))
        pairs = [(measured[before], measured[after]) for measured in common]
        blocks = tuple(len(mine.blocks) for mine, _ in pairs) if all(paired(*pair) for pair in pairs) else ()
        return Speedup(
            ratio=math.exp(centre),
            ci95=interval,
            pairs=len(common),
            blocks=blocks,
            epochs=_epochs([mine for mine, _ in pairs]),
            spreads=_spreads(*logs),
        )

    def checked(
        self, speedup: Speedup, before: Point, after: Point, runs: tuple[Measurement, Measurement], *, among: int = 1
    ) -> Speedup:
        """Adds one uninterrupted run of each point to their speed-up; the lower of the two counts where they disagree.

        Args:
            speedup: From these rounds.
            before: The reference point.
            after: The point compared with it.
            runs: Uninterrupted runs of the two.
            among: Number of points that the fastest is chosen from, as in `speedup`.
        """
        common = self.of_both(before, after)
        scores = [[self._log_score(measured[point]) for measured in common] for point in (before, after)]
        own = math.sqrt(math.fsum(statistics.variance(side) for side in scores)) if len(common) > 1 else 0.0
        half, wide = (
            deviation_bound(own, len(common), 0.025 / count) * math.sqrt(1 + 1 / len(common)) for count in (1, among)
        )
        ratio = math.exp(self._log_score(runs[1]) - self._log_score(runs[0]))
        expected = Interval(speedup.ratio * math.exp(-half), speedup.ratio * math.exp(half))
        seconds = runs[0].measure_seconds, runs[1].measure_seconds
        run = Uninterrupted(ratio=ratio, seconds=seconds, expected=expected)
        update: dict[str, object] = {"uninterrupted": run}
        if ratio < expected.low:
            update |= {"ratio": ratio, "ci95": Interval(ratio * math.exp(-wide), ratio * math.exp(wide))}
        return speedup.model_copy(update=update)

    def best_seconds(self, before: Point, after: Point, start_seconds: float) -> float | None:
        """How long each point should be timed in a round, for the narrowest interval in a given time.

        Long rounds lose less to process starts. Short rounds allow more processes, which average out the variance
        between them. The optimum is sqrt(start cost x variance of blocks / variance between processes) (Kalibera and
        Jones, *Rigorous Benchmarking in Reasonable Time*, ISMM 2013, section 6).

        Args:
            before: One of the two points.
            after: The other one.
            start_seconds: Seconds that a process needs before it is timed.

        Returns:
            Seconds; None where too few rounds have paired blocks.
        """
        common = self.of_both(before, after)
        errors = [
            (error**2, measured[after].measure_seconds)
            for error, measured in zip(self._block_errors(common, before, after), common, strict=True)
            if error is not None
        ]
        if len(errors) < FEWEST_FOR_NOISE:
            return None
        logs = [self._log_score(measured[after]) - self._log_score(measured[before]) for measured in common]
        of_blocks = statistics.fmean(error * seconds for error, seconds in errors)  # of one second
        between = statistics.variance(logs) - statistics.fmean(error for error, _ in errors)
        return math.sqrt(start_seconds * of_blocks / max(between, PROCESS_SPREAD**2))

    def ran_faster(self, before: Point, after: Point, speedup: Speedup) -> str | None:
        """Explains a gain that comes from the GPU's clock instead of the config; None where nothing points to it.

        A cold card, or one that its power limit slows less, clocks higher, and the config that trains then gains from
        it. So the rates are compared again, each divided by the median clock of its process: here, too, the interval
        must lie above 1. If the clock was not higher for `after`, it explains nothing. Only rates are checked: joules
        do not scale with the clock.
        """
        both = self.of_both(before, after)
        clocks = [[_clock_mhz(measured[point]) for measured in both] for point in (before, after)]
        known_clocks = [[clock for clock in side if clock is not None] for side in clocks]
        if not self.objective.is_rate or not speedup.confirmed or any(len(side) < len(both) for side in known_clocks):
            return None
        first, second = (sum(side) / len(side) for side in known_clocks)
        per_cycle = [{point: _in_cycles(measured[point]) for point in (before, after)} for measured in both]
        cycles = Rounds(per_cycle, self.objective).speedup(before, after)
        if cycles is None or second <= first or cycles.ci95.low > 1.0:
            return None
        return (
            f"{RAN_FASTER}: {second:,.0f} MHz for it and {first:,.0f} MHz for the baseline in the mean; for the same "
            f"clock cycles it is {cycles.ratio:.3f} times as fast ({cycles.ci95.low:.3f} to {cycles.ci95.high:.3f})"
        )

    def throttled(self, before: Point, after: Point) -> str | None:
        """A sentence if the card held its clocks down in rounds of both points; None where nothing shows that.

        A power cap is no such limit: under full load it is normal.
        """
        both = self.of_both(before, after)
        seen = [[measured[point].seen for point in (before, after)] for measured in both]
        sides = [side for of_round in seen for side in of_round]
        limits = {limit for side in sides for limit in side.clock_limits} & {*SLOWDOWNS}
        hit = sum(any(limits & {*side.clock_limits} for side in of_round) for of_round in seen)
        if not hit:
            return None
        degrees = [side.temperature_celsius for side in sides if side.temperature_celsius is not None]
        hot = f", at up to {max(degrees):.0f} °C" if degrees else ""
        return (
            f"the GPU's clocks were held down in {hit} of {len(both)} rounds of the proof "
            f"({', '.join(sorted(limits))}{hot}): "
            "the speed-up is that of a card which throttles; check its cooling"
        )

    def _block_errors(self, common: Sequence[Round], before: Point, after: Point) -> list[float | None]:
        """The standard error of each round's ratio, by its blocks."""
        return [block_error(measured[before], measured[after], self.objective.costs) for measured in common]

    def _log_score(self, measured: Measurement) -> float:
        return math.log(self.objective.score(measured) or math.nan)


def _epochs(measurements: Sequence[Measurement]) -> float | None:
    """The number of epochs in the timed blocks; None where the data is endless."""
    epoch = measurements[0].epoch_samples
    return sum(block.samples for each in measurements for block in each.blocks) / epoch if epoch else None


def _spreads(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The standard deviation of each side from process to process, without what both sides share.

    The machine's speed at the moment affects both sides of a round, so it is in their covariance, which is subtracted
    from each side's variance (Grubbs, *On estimating precision of measuring instruments and product variability*, JASA
    1948).

    Args:
        before: Logarithms of the scores of one side, one per round.
        after: The same of the other side.
    """
    if len(before) < FEWEST_FOR_SPREADS:
        return None
    shared = max(0.0, statistics.covariance(before, after))
    mine, theirs = (math.sqrt(max(0.0, statistics.variance(side) - shared)) for side in (before, after))
    return mine, theirs


def _clock_mhz(measured: Measurement) -> float | None:
    """The GPU's median clock; None where it is not known."""
    return measured.seen.sm_clock_mhz or None


def _in_cycles(measured: Measurement) -> Measurement:
    """The measurement with gigacycles in place of seconds."""
    gigahertz = (_clock_mhz(measured) or 0.0) / 1000
    blocks = tuple(block.model_copy(update={"seconds": block.seconds * gigahertz}) for block in measured.blocks)
    boundary = measured.epoch_boundary_seconds * gigahertz
    return measured.model_copy(update={"blocks": blocks, "epoch_boundary_seconds": boundary})
