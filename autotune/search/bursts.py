"""Runs bursts for the search, keeps them in its log, and knows what the next one would cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autotune.bursts.contest import playing_seconds
from autotune.bursts.duet import LEAST_LONG_TURNS, ROUND_WARMUP_SHARE
from autotune.bursts.host import END_SECONDS
from autotune.bursts.protocol import Part
from autotune.bursts.runner import Runner
from autotune.measuring import FEWEST_PAIRS, Burst, Headroom, Pair, Point
from autotune.search.progress import Progress
from autotune.search.rounds import Round
from autotune.search.stages import ABLATION, CONFIRM, HEADROOM
from autotune.search.stopping import (
    CACHE_SAVES,
    Budget,
    ablating_plan,
    burst_deadline,
    compiled_alike,
    confirming_plan,
    first_compile_seconds,
    plan_for,
    predicted_seconds,
)
from autotune.search.trials import Trial, TrialLog
from autotune.search.turns import Turns

BASELINE_SHARE = 0.8
"""Of what remains, for the first burst, should it take that long."""
OPENING_STEPS = 2
"""That a side takes before its first block: one to see that it trains, and one that tells its pace."""
LEAST_CONFIRMING_SHARE = 0.25
"""What is left for the confirmation of a config that takes long to compile: `FEWEST_PAIRS` rounds, in which it comes
out of a cache, and so much of the budget at least. Chosen."""
MOST_CONFIRMING_SHARE = 0.35
"""Of the budget, kept for confirming what may yet be found, where rounds take long. Chosen."""


class Bursts:
    """Bursts, and the log that they are kept in.

    Args:
        baseline: What the user trains with today.
        runner: Runs them.
        log: Where they are kept.
        budget: The wall clock.
        progress: Who is told.
        note: Told what the result should say as well.
        seed: Of the order within rounds.

    Attributes:
        baseline: What candidates are compared with.
        cut_off: Rounds, by stage and number, in the middle of which the budget ended.
    """

    def __init__(
        self,
        baseline: Point,
        runner: Runner,
        log: TrialLog,
        budget: Budget,
        progress: Progress,
        *,
        note: Callable[[str], None],
        seed: int = 0,
    ) -> None:
        self.log = log
        self.budget = budget
        self.progress = progress
        self.plan = plan_for(budget.seconds, log.objective)
        self._round_plans = {
            CONFIRM: confirming_plan(budget.seconds, log.objective),
            ABLATION: ablating_plan(budget.seconds, log.objective),
        }
        self.baseline = baseline
        self.cut_off: set[tuple[str, int]] = set()
        self._runner = runner
        self._stage_shown = ""
        self._turns = Turns(runner, note, seed)

    @property
    def trials(self) -> list[Trial]:
        """All that ran so far, in order."""
        return self.log.trials

    @property
    def searching_seconds(self) -> float:
        """Seconds that the search may still take: what it has found must be confirmed, however long a round takes."""
        best = self.log.incumbent()
        if best is None:
            return self.budget.searching_seconds_without_gain
        confirming = FEWEST_PAIRS * self.round_seconds([self.baseline, best.burst.point])
        if best.burst.point == self.baseline:
            left = self.budget.ablating_seconds - min(confirming, MOST_CONFIRMING_SHARE * self.budget.seconds)
            return min(self.budget.searching_seconds_without_gain, max(0.0, left))
        return min(self.budget.searching_seconds, max(0.0, self.budget.confirming_seconds - confirming))

    def seconds_of(self, point: Point) -> float:
        """What a challenge by a point is expected to cost, starting and compiling included."""
        return predicted_seconds(point.config, self.trials, self.plan)

    def round_seconds(self, points: Sequence[Point], stage: str = CONFIRM) -> float:
        """What a round of these points is expected to cost: as the last one that they took part in did."""
        block_samples = max(point.config.micro_batch for point in points)
        return sum(self._round_side_seconds(one, block_samples, stage) for one in points)

    def rounds_seconds(self, points: Sequence[Point], count: int, stage: str) -> float:
        """What so many rounds of these points are expected to cost: code is compiled in the first, and kept."""
        modes = [one.config.compile_mode for one in points if not compiled_alike(one.config, self.trials)]
        once = sum(CACHE_SAVES * first_compile_seconds(mode, self.trials) for mode in modes if mode is not None)
        return count * self.round_seconds(points, stage) - (count - 1) * once

    def _round_side_seconds(self, point: Point, block_samples: int, stage: str) -> float:
        """A point's share of a round: as in the last of that stage, else by what its start and its steps took so far.

        What its challenge took tells little: that ends as soon as it is decided.
        """
        played = (trial for trial in reversed(self.trials) if trial.burst.point == point and trial.round is not None)
        last = next(played, None)
        if last is not None and last.stage == stage:
            return last.burst.seconds
        if point.config.compile_mode is not None:
            return min(self.seconds_of(point), last.burst.seconds if last is not None else math.inf)
        if (measured := self.log.measurement(point)) is None:
            return self.seconds_of(point)
        started, trained = measured.start_seconds + measured.build_seconds, self._trained_seconds(stage)
        planned = started + measured.warmup_seconds + trained  # the loader's start and the first steps come before
        if last is not None:
            planned = last.burst.seconds + trained - self._trained_seconds(last.stage)
        samples = OPENING_STEPS * point.config.effective_batch + LEAST_LONG_TURNS * block_samples
        return max(planned, started + samples / measured.samples_per_second)

    def _trained_seconds(self, stage: str) -> float:
        """That a side trains in a round of a stage, warming up included."""
        return (1 + ROUND_WARMUP_SHARE) * self._round_plans[stage].measure_seconds

    def search(self, point: Point, stage: str, reason: str) -> Burst:
        """A challenge of the incumbent, in the time that is for searching.

        Args:
            point: What to run.
            stage: The part of the search that asks for it.
            reason: Why, in one sentence.
        """
        self.show_stage(stage)
        trial = self.log.run(point, stage, reason, lambda: self.measure(point))
        self.tell(trial.burst)
        return trial.burst

    def measure(self, point: Point) -> tuple[Burst, Pair | None]:
        """A challenge that is not kept in the log yet, as the sampler's: it has a trial of its own."""
        best = self.log.incumbent()
        incumbent = best.burst.point if best is not None else None

        def told(pair: Pair) -> None:
            self.progress.duet(point, pair.partner, pair.ratio, pair.ci95)

        available = self.affordable_seconds(point) if self.trials else BASELINE_SHARE * self.budget.remaining
        # What was begun may go on a little: the confirmation's share is the larger one.
        available = min(available + 2 * self.plan.measure_seconds, self.budget.remaining)
        deadline = burst_deadline(point.config, self.trials, self.plan, available)
        if point.config.compile_mode is not None:  # what is allowed for compiling is not for playing
            deadline = min(deadline + playing_seconds(self.plan), self.budget.remaining)
        return self._turns.challenge(incumbent, point, self.plan, deadline, told)

    def affordable_seconds(self, point: Point) -> float:
        """What a challenge by a point may take.

        The first to compile may take all that the confirmation does not need: what is killed just before its end was
        for nothing.
        """
        compiled = any(trial.burst.point.config.compile_mode is not None for trial in self.trials)
        if point.config.compile_mode is None or compiled:
            return self.searching_seconds
        least = FEWEST_PAIRS * self.seconds_of(self.baseline) * 2
        least = max(least, LEAST_CONFIRMING_SHARE * self.budget.seconds)
        return max(self.searching_seconds, self.budget.remaining - least)

    @property
    def side_by_side(self) -> bool:
        """Whether several processes may live at once, for all that is known."""
        return self._turns.side_by_side

    def prepare(self, point: Point, stage: str) -> None:
        """Starts a candidate, which takes its first steps while others play; `search` must follow.

        Args:
            point: What to run.
            stage: The part of the search that asks for it.
        """
        self.show_stage(stage)
        self._runner.prepare(point, self.plan)

    @property
    def is_prepared(self) -> bool:
        """Whether what was to be prepared is ready to be challenged with, has failed, or was ended for its memory."""
        return self._runner.is_prepared

    def release(self) -> None:
        """Ends the incumbent that lives, and what is prepared: the search is over, and others need their memory."""
        self._runner.close()

    def in_turn(self, points: Sequence[Point], number: int, stage: str, reason: Callable[[Point], str]) -> list[Burst]:
        """A round: a fresh process for each point, and blocks in turn; whole bursts in turn where memory is too small.

        Args:
            points: What to run.
            number: Of the round.
            stage: The part of the search that asks for it.
            reason: Why a point is run, in one sentence.
        """
        plan = self._round_plans[stage]
        self.show_stage(stage)

        def deadline(point: Point) -> float:
            return burst_deadline(point.config, self.trials, plan, self.budget.remaining)

        bursts = self._turns.play(points, plan, deadline, self.budget.remaining)
        if self.budget.remaining < END_SECONDS:
            self.cut_off.add((stage, number))
        for burst in bursts:
            told = reason(burst.point)
            self.log.run(burst.point, stage, told, lambda burst=burst: (burst, None), round_number=number)  # type: ignore[misc]
            self.tell(burst)
        return bursts

    def part_rate(self, point: Point, part: Part) -> float | None:
        """Samples per second of one part of training alone."""
        plan = self.plan.model_copy(update={"part": part})

        def run() -> Burst:
            return self._runner.run(point, plan, burst_deadline(point.config, self.trials, plan, self.budget.remaining))

        burst = run()
        if burst.outcome.is_memory and self.side_by_side:
            self._runner.close()  # the memory of what lives beside it is needed
            burst = run()
        return burst.rate

    def headroom(self, point: Point) -> Headroom | None:
        """What a faster loader could bring to a point that was measured: the same training on batches at hand.

        The two play a duet where memory holds both; else it is compared with what the point was measured to do.
        """
        self.show_stage(HEADROOM)
        plan = self.plan.model_copy(update={"part": "compute", "fastest_wins": False})
        deadline = burst_deadline(point.config, self.trials, plan, self.budget.remaining)
        pair: Pair | None = None
        if self.side_by_side:
            burst, pair = self._runner.challenge(point, point, plan, deadline, lambda _: None)
        if not self.side_by_side or burst.outcome.is_memory:
            self._runner.close()  # the memory of what lives is needed
            burst = self._runner.run(point, plan, deadline)
        known = self.log.measurement(point)
        if burst.rate is None or known is None:
            return None
        ratio = pair.ratio if pair is not None else burst.rate / known.samples_per_second
        ci95 = pair.ci95 if pair is not None and not pair.too_few else None
        return Headroom(ratio=ratio, ci95=ci95, cached_samples_per_second=burst.rate)

    def rounds(self, stage: str) -> list[Round]:
        """The rounds of a stage so far, those of an interrupted run included."""
        rounds: dict[int, Round] = {}
        for trial in self.trials:
            measured = trial.burst.measurement
            if trial.stage == stage and trial.round is not None and measured is not None and trial.score is not None:
                rounds.setdefault(trial.round, {})[trial.burst.point] = measured
        return list(rounds.values())

    def tell(self, burst: Burst) -> None:
        """Shows how a burst ended, beside the best so far."""
        best = self.log.incumbent()
        self.progress.burst(burst, best.burst if best else None, self.budget.remaining)

    def show_stage(self, stage: str) -> None:
        """Shows the part of the search that has begun, once."""
        if stage != self._stage_shown:
            self._stage_shown = stage
            self.progress.stage(stage)
