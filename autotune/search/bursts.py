"""Runs bursts for the search, records them in its log, and decides how much time they may take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.bursts.hosts.host import END_SECONDS
from autotune.bursts.hosts.protocol import BurstPlan, Part
from autotune.bursts.runner import Runner
from autotune.bursts.turns.duet import LEAST_TURNS, ROUND_WARMUP_SHARE
from autotune.hardware import DeviceKind
from autotune.knobs import WorkloadFacts
from autotune.measuring import Burst, Headroom, Measurement, Pair, Point, Progress, Rounds, pair_apart, pair_of, paired
from autotune.results.result import CONFIRM, UNINTERRUPTED
from autotune.search.costs import Costs
from autotune.search.proposal import ALLOCATOR, HEADROOM, Proposal
from autotune.search.rounds import MIN_DECIDED_ROUNDS
from autotune.search.stopping import (
    EXPLAINING_SECONDS,
    MOST_SECONDS,
    OLD_ENOUGH,
    Budget,
    confirming_plan,
    plan_for,
    round_plan,
    timed_for,
)
from autotune.search.trials import Trial, TrialLog

if TYPE_CHECKING:
    import optuna

FEWEST_ROUNDS = 2
"""Rounds of the proof for which a first compile leaves time: two that agree within 3 % confirm a gain of 18 %."""
BASELINE_SHARE = 0.8
"""The largest share of the remaining budget for the first burst."""
LEAST_CONFIRMING_SHARE = 0.25
"""The least share of the budget for confirming a config that takes long to compile. It must hold
`FEWEST_ROUNDS`, whose code comes from a cache. Not tuned."""
MOST_CONFIRMING_SHARE = 0.45
"""The largest share of the budget reserved for confirming, if rounds take long and `FEWEST_ROUNDS` fit. A language
model's step of 6.4 s on an H100 left the search of 220 s one candidate. Not tuned."""
OVERRUN = 3.0
"""A challenge that has begun is killed after this many times its expected seconds, even if it then takes some of the
proof's time: killed, it has shown nothing. Estimates on an H100 were off by 2.5. Before any has ended, the first one
may take all: its cost is only guessed. A first compile has a share of its own."""


class Bursts:
    """Runs bursts and records them in a log.

    Args:
        baseline: What the user trains with today.
        memory_limit_bytes: The memory target; None if there is none.
        facts: From one look at the workload; None if there was none.
    """

    def __init__(
        self,
        baseline: Point,
        runner: Runner,
        log: TrialLog,
        budget: Budget,
        progress: Progress,
        device: DeviceKind = "cpu",
        memory_limit_bytes: int | None = None,
        facts: WorkloadFacts | None = None,
    ) -> None:
        self.log = log
        self.device = device
        self.budget = budget
        self.progress = progress
        self.plan = plan_for(log.objective, device)
        confirming = confirming_plan(budget.seconds, log.objective)
        self._usual_round_plans = {CONFIRM: confirming, ALLOCATOR: round_plan(self.plan, 0.0)}
        self._round_plans = dict(self._usual_round_plans)
        self.baseline = baseline  # what candidates are compared with
        self.facts = facts
        reading = (facts.samples or 0) * facts.sample_seconds if facts is not None else 0.0
        self.costs = Costs(log.trials, self.plan, device, self._round_plans, memory_limit_bytes, reading)
        self.cut_off: set[tuple[str, int]] = set()  # rounds that the end of the budget interrupted
        self._runner = runner
        self._stage_shown = ""

    @property
    def trials(self) -> list[Trial]:
        """All trials so far, in order."""
        return self.log.trials

    @property
    def incumbent(self) -> Point | None:
        """The best point so far."""
        best = self.log.incumbent()
        return best.burst.point if best is not None else None

    @property
    def searching_seconds(self) -> float:
        """Seconds that the search may still take; reserves enough to confirm its best point, even with long rounds.

        If nothing can be confirmed any more, the search takes all: what it finds shows what a longer budget would give.
        """
        best = self.incumbent
        if best is None:
            return self.budget.searching_seconds
        available, one = self.budget.confirming_seconds, self.costs.round_seconds([self.baseline, best])
        most = MOST_CONFIRMING_SHARE * self.budget.seconds
        confirming, least = min(MIN_DECIDED_ROUNDS * one, max(FEWEST_ROUNDS * one, most)), 0.0
        if best == self.baseline:
            least = self.costs.challenge_seconds(self.baseline, best)
            fitting = (available - least) // one
            if fitting < 1:
                return available
            confirming = min(confirming, fitting * one, most)
        return max(least, min(self.budget.searching_seconds, available - confirming))

    def affordable_seconds(self, point: Point) -> float:
        """Seconds that a challenge by a point may take.

        A first compile may take all the time that the confirmation does not need: killing it early wastes what it took.
        """
        if self.costs.is_compiled(point.config):
            return self.searching_seconds
        least = FEWEST_ROUNDS * self.costs.round_seconds([self.baseline, self.baseline])
        least = max(least, LEAST_CONFIRMING_SHARE * self.budget.seconds)
        return max(self.searching_seconds, self.budget.remaining - least)

    def affords(self, point: Point) -> bool:
        """Whether there is time for a challenge by a point."""
        return self.costs.challenge_seconds(point, self.incumbent) <= self.affordable_seconds(point)

    def search(self, proposal: Proposal) -> Burst:
        """Challenges the incumbent with one point, in the time left for searching."""
        self.challenge([(self.log.ask(proposal.point), proposal)])
        return self.trials[-1].burst

    def challenge(self, challengers: Sequence[tuple[optuna.Trial, Proposal]]) -> None:
        """Challenges the incumbent with several points in the same turns, each with its open trial."""
        points = [proposal.point for _, proposal in challengers]
        self.show_stage(challengers[0][1].stage)
        incumbent = self.incumbent
        available = BASELINE_SHARE * self.budget.remaining
        if self.trials:
            available = max(map(self.affordable_seconds, points))
            if all(self.costs.is_compiled(point.config) for point in points):
                overrun = OVERRUN if self.costs.knows_challenges else math.inf
                expected = sum(self.costs.challenge_seconds(point, incumbent) for point in points)
                available = max(available, overrun * expected)
            available = min(available, self.budget.remaining)
        deadline = self.costs.challenge_deadline(points, incumbent, available)
        played = self._played(incumbent, points, deadline)
        turn = 1 + max((trial.turn or 0 for trial in self.trials), default=0)
        for trial, _ in challengers[len(played) :]:
            self.log.withdraw(trial)
        for (trial, proposal), (burst, pair) in zip(challengers, played, strict=False):
            self.tell(self.log.finish(trial, proposal.stage, proposal.reason, burst, pair, turn=turn))

    def _played(
        self, incumbent: Point | None, points: Sequence[Point], deadline: float
    ) -> list[tuple[Burst, Pair | None]]:
        """Plays a turn. A point that may come near the memory target first trains alone, in a process of its own."""
        alone: Burst | None = None
        if incumbent is not None and self.costs.runs_alone_first(points[0]):
            self._runner.close()  # the point needs its memory
            alone = self._runner.run(points[0], self.plan, deadline)
            if not alone.ok:
                return [(alone, None)]
            deadline -= alone.seconds
        played = self._runner.challenge(incumbent, points, self.plan, deadline, self.progress.duet)
        if alone is None:
            return played
        ((burst, pair),) = played
        seconds = alone.seconds + burst.seconds
        kept = burst if burst.ok else alone  # there may be no room beside others
        return [(kept.model_copy(update={"seconds": seconds}), pair if burst.ok else None)]

    def release(self) -> None:
        """Ends the live processes: the search is over, and what follows needs their memory."""
        self._runner.close()

    def in_turn(self, points: Sequence[Point], number: int, stage: str, reason: str) -> list[Burst]:
        """Plays a round: a fresh process for each point, and blocks in turn, or whole bursts if memory is too small.

        Args:
            points: What to run.
            number: The number of the round.
            stage: The part of the search that asks for it.
            reason: Why it is played, in one sentence.
        """
        bursts = self._play(points, stage, number)
        if self.budget.remaining < END_SECONDS:
            self.cut_off.add((stage, number))
        for burst in bursts:
            self.tell(self.log.record(burst, stage, reason, round_number=number))
        return bursts

    def time_rounds(self, stage: str, seconds: float | None) -> None:
        """Sets how long each side of a stage's rounds is timed, within the limits of rounds; None: as usual."""
        usual = self._usual_round_plans[stage]
        timed = usual if seconds is None else timed_for(usual, min(MOST_SECONDS, max(OLD_ENOUGH, seconds)))
        self._round_plans[stage] = timed

    def compare_fresh(self, point: Point, stage: str, reason: str) -> Pair | None:
        """Compares a point with the baseline in fresh processes: for settings that a live process cannot switch."""
        theirs, own = self._play([self.baseline, point], stage, 0)
        pair = None
        if theirs.measurement is not None and own.measurement is not None:
            if paired(theirs.measurement, own.measurement):
                pair = pair_of(self.baseline, theirs.measurement.block_seconds, own.measurement.block_seconds)
            else:
                pair = pair_apart(
                    self.baseline, own.measurement.samples_per_second / theirs.measurement.samples_per_second
                )
        self.log.record(theirs, stage, reason, round_number=0)
        played = self.log.record(own, stage, reason, pair)
        self.tell(played)
        return played.pair

    def uninterrupted(self, points: Sequence[Point], number: int, seconds: float) -> None:
        """Runs points one after the other, each alone in a fresh process, from the same place in an epoch.

        Args:
            points: What to run.
            number: The number of the round that they form.
            seconds: How long each trains, including its warm-up.
        """
        self.show_stage(UNINTERRUPTED)
        timed = seconds / (1 + ROUND_WARMUP_SHARE)
        # As few blocks as show whether it is warm.
        plan = self.plan.model_copy(update={"measure_seconds": timed, "turn_seconds": timed / LEAST_TURNS})
        reason = "one long run shows what turns may hide"
        for point in points:
            burst = self._alone(point, plan.of_round(number))
            if self.budget.remaining < END_SECONDS:
                self.cut_off.add((UNINTERRUPTED, number))
            self.tell(self.log.record(burst, UNINTERRUPTED, reason, round_number=number))

    def _play(self, points: Sequence[Point], stage: str, number: int) -> list[Burst]:
        plan = self._round_plans[stage].of_round(number)
        self.show_stage(stage)
        remaining = self.budget.remaining
        deadline = sum(self.costs.deadline(point, plan, remaining) for point in points)
        return self._runner.play(points, plan, min(deadline, remaining))

    def part_rate(self, point: Point, part: Part) -> float | None:
        """Samples per second of one part of training alone."""
        plan = self.plan.model_copy(update={"part": part, "measure_seconds": EXPLAINING_SECONDS})
        burst = self._alone(point, plan)
        if burst.outcome.is_memory:
            self._runner.close()  # frees the memory of the live processes
            burst = self._alone(point, plan)
        return burst.rate

    def headroom(self, point: Point) -> Headroom | None:
        """What a faster loader could gain for a measured point: the same training on batches at hand.

        The two play a duet if memory holds both; otherwise the point's earlier measurement is the reference.
        """
        self.show_stage(HEADROOM)
        update = {"part": "compute", "fastest_wins": False, "measure_seconds": EXPLAINING_SECONDS}
        plan = self.plan.model_copy(update=update)
        deadline = self.costs.deadline(point, plan, self.budget.remaining)
        ((burst, pair),) = self._runner.challenge(point, [point], plan, deadline, lambda _point, _pair: None)
        if burst.outcome.is_memory:
            self._runner.close()  # frees the memory of the live processes
            burst = self._alone(point, plan)
        measured = self.log.measurement(point)
        if burst.rate is None or measured is None:
            return None
        ratio = pair.ratio if pair is not None else burst.rate / measured.samples_per_second
        ci95 = pair.ci95 if pair is not None and not pair.too_few else None
        return Headroom(ratio=ratio, ci95=ci95, cached_samples_per_second=burst.rate)

    def rounds(self, stage: str) -> Rounds:
        """The rounds of a stage so far, including those of an interrupted run."""
        rounds: dict[int, dict[Point, Measurement]] = {}
        for trial in self.trials:
            measured = trial.burst.measurement
            if trial.stage == stage and trial.round is not None and measured is not None and trial.score is not None:
                rounds.setdefault(trial.round, {})[trial.burst.point] = measured
        return Rounds(list(rounds.values()), self.log.objective)

    def tell(self, trial: Trial) -> None:
        """Shows how a trial ended, beside the best so far."""
        best, remaining = self.log.incumbent(), self.budget.remaining
        scores = {standing.point: standing.score for standing in self.log.standings()}
        gain = scores[best.burst.point] / scores[self.baseline] if best and self.baseline in scores else None
        self.progress.baseline = self.baseline
        self.progress.burst(trial.burst, trial.pair, best.burst if best else None, remaining, gain)

    def show_stage(self, stage: str) -> None:
        """Shows which part of the search has begun, once."""
        if stage != self._stage_shown:
            self._stage_shown = stage
            self.progress.stage(stage)

    def _alone(self, point: Point, plan: BurstPlan) -> Burst:
        return self._runner.run(point, plan, self.costs.deadline(point, plan, self.budget.remaining))
