"""The search loop: stages, then the sampler, then the confirmation, inside a budget.

It knows bursts only as a `Runner`, and time only as a `Budget`, so that the very same code runs on recorded surfaces
with a virtual clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from typing import Literal

from autotune.ablation import ablate, ablation_rows, put_back
from autotune.burst.protocol import BurstPlan, Part
from autotune.burst.runner import Runner
from autotune.hardware.model import DeviceKind
from autotune.measurement import Burst, Point
from autotune.memory import MemoryModel
from autotune.numerics import Numerics, NumericsGuard
from autotune.progress import Progress
from autotune.result import AblationRow
from autotune.search.ceilings import Ceilings
from autotune.search.disturbance import REPEATS_SHARE, RepeatingRunner, anchor_due, drift_of
from autotune.search.guard import refusal
from autotune.search.stages import ABLATION, ANCHOR, BASELINE, CONFIRM, SAMPLER, Stages
from autotune.search.stopping import (
    Budget,
    ablation_plan,
    all_fail_alike,
    burst_deadline,
    numerics_steps,
    plan_for,
    plateaued,
    predicted_seconds,
)
from autotune.search.trials import Trial, TrialLog, mean_rate, ranked_points
from autotune.space import Space
from autotune.verify import Confirmed, Round, as_good_as_the_fastest, confirm, rank

StoppedBy = Literal["budget", "target", "plateau", "exhausted", "interrupted"]
SAMPLER_TRIES = 50
MAX_FINALISTS = 4
DECIDING_ROUNDS = 4
BASELINE_SHARE = 0.8
"""Of what remains, for the first burst, should it take that long."""
CHECKING_SHARE = 0.08
"""Of the budget: what numerics checks of more finalists than one may take."""
NOTABLE_MEMORY = 1.25
"""Of two equals the one that takes so many times less memory is the cheaper."""
NEAR_EQUAL = 0.05
"""A further finalist is worth its bursts when it came within this share of the first."""


class Search:
    """One search.

    Args:
        space: What is searched.
        baseline: What the user trains with today.
        runner: Runs bursts.
        log: Where they are kept.
        budget: The wall clock.
        progress: Who is told.
        utilization_target: Share of the compute ceiling at which the search may stop.
        seed: Of the confirmation's order.
        memory_limit_bytes: The memory target, for which the largest batch is predicted.
        device: The kind of device.
        numerics: Checks finalists against eager fp32; None trusts them, as where recordings are replayed.
        staged: Whether stages come before the sampler; without, only the baseline does.
        sampled: Whether a sampler comes after them.
    """

    def __init__(
        self,
        space: Space,
        baseline: Point,
        runner: Runner,
        log: TrialLog,
        budget: Budget,
        progress: Progress,
        *,
        utilization_target: float = 0.95,
        seed: int = 0,
        memory_limit_bytes: int | None = None,
        device: DeviceKind = "cpu",
        numerics: NumericsGuard | None = None,
        staged: bool = True,
        sampled: bool = True,
    ) -> None:
        self.space = space
        self.baseline = baseline
        self.log = log
        self.ceilings = Ceilings(self._run_part, self._affordable)
        self.drift = drift_of(log.trials)
        self._runner = RepeatingRunner(
            runner, progress.note, allowance_seconds=REPEATS_SHARE * budget.seconds, clock=budget.now
        )
        self._budget = budget
        self._progress = progress
        self._utilization_target = utilization_target
        self._seed = seed
        self._plan = plan_for(budget.seconds)
        self._stages = Stages(
            space, baseline, self._refuse, self._largest_batch, self.ceilings.fewest_workers, self._seconds_of
        )
        self._memory_limit_bytes, self._device = memory_limit_bytes, device
        self._numerics, self._checking_seconds = numerics, 0.0
        self._staged, self._sampled = staged, sampled
        self._stage_shown = ""
        self._searched = False

    def run(self) -> StoppedBy:
        """Searches, then confirms; returns why the search stopped."""
        stopped_by = self._search()
        best = self.log.best()
        if best is not None and best.burst.point != self.baseline:
            self._confirm()
        self._searched = True
        if best is not None:
            answer = self.answer()
            self.ceilings.compute(answer)
            self.ceilings.loader(answer)
        return stopped_by

    def answer(self) -> Point:
        """The point to train with: only a confirmed gain displaces the baseline, and of equals the cheapest wins.

        Of those that cost the same the fastest does, which comes first.
        """
        equals = as_good_as_the_fastest(self.confirmed(), self._rounds())
        return min(equals, key=self._upkeep, default=self.baseline)

    def _upkeep(self, point: Point) -> tuple[bool, int, int]:
        """What a config costs besides time, dearest first: compiling, workers, memory."""
        measured = self.log.measurement(point)
        memory = measured.device_memory_bytes if measured is not None else None
        step = round(math.log(memory or 1, NOTABLE_MEMORY))  # a few per cent of memory are worth no rate
        return point.config.compile_mode is not None, point.config.num_workers, step

    def _search(self) -> StoppedBy:
        while True:
            proposal = self._stages.next(self.log.trials)
            if proposal is None or not (self._staged or proposal.stage == BASELINE):
                break
            if not self._affordable(proposal.point):
                if proposal.point.config.compile_mode is None:
                    return "budget"
                break  # what is left of the stages costs too much; the sampler may know something cheaper
            self._run(proposal.point, proposal.stage, proposal.reason)
            self._check_drift()
            if all_fail_alike(self.log.trials):
                return "exhausted"
        if self._reaches_target():
            return "target"
        return self._sample() if self._sampled else "exhausted"

    def _sample(self) -> StoppedBy:
        """Lets the sampler propose until the budget, a plateau, or nothing new."""
        while self._affordable(self.baseline):  # as cheap as any
            if plateaued(self.log.trials):
                return "plateau"
            proposed = self.log.propose(self._refuse_or_unaffordable, SAMPLER_TRIES)
            if proposed is None:
                return "exhausted"
            asked, point = proposed
            self._show_stage(SAMPLER)
            burst = self._burst(point, self._budget.searching)
            self.log.finish(asked, SAMPLER, f"proposed by {type(self.log.study.sampler).__name__}", burst)
            self._tell(burst)
            self._check_drift()
        return "budget"

    def _check_drift(self) -> None:
        """Runs the baseline again when it is time to, and rescales what comes after by how the machine has moved."""
        if not anchor_due(self.log.trials) or not self._affordable(self.baseline):
            return
        self._run(self.baseline, ANCHOR, "has the machine become faster or slower?", incumbent=False)
        before, self.drift = self.drift, drift_of(self.log.trials)
        self.log.drift = self.drift.factor
        if self.drift != before:
            self._progress.note(
                f"the machine now runs at {self.drift.factor:.2f} of its first speed: later figures are rescaled"
            )

    def _reaches_target(self) -> bool:
        """Whether the best keeps the GPU as busy as was asked, and comes as close to what its computing could reach.

        A ceiling alone is no target: another precision, or compiling, raises it.
        """
        best = self.log.best()
        readings = best.burst.measurement.readings if best is not None and best.burst.measurement is not None else None
        busy = readings.device_activity_fraction if readings is not None else None
        if best is None or best.rate is None or busy is None or busy < self._utilization_target:
            return False
        ceiling = self.ceilings.compute(best.burst.point)
        return ceiling is not None and best.rate >= self._utilization_target * ceiling

    def _run_part(self, point: Point, part: Part) -> float | None:
        """Samples per second of one part of training alone, at the machine's first speed."""
        plan = self._plan.model_copy(update={"part": part})
        burst = self._runner.run(
            point, plan, burst_deadline(point.config, self.log.trials, plan, self._budget.remaining)
        )
        return burst.rate / self.log.drift if burst.rate is not None else None

    def _confirm(self) -> None:
        """Measures the finalists and the baseline anew, interleaved; then those that the winner's true rate lets in.

        The first finalist may have been lucky: what seemed slower than its lucky figure, but not than its true one,
        races against it too, while there is time.
        """
        self._show_stage(CONFIRM)
        raced: set[Point] = set()
        while finalists := self._finalists(raced):
            leaders = [one.point for one in self.confirmed()[:1] if one.point in raced]
            points = [*leaders, *finalists]
            known = [measured for measured in self._rounds() if {self.baseline, *points} <= measured.keys()]
            numbers = [trial.round for trial in self.log.trials if trial.stage == CONFIRM and trial.round is not None]
            first = max(numbers, default=-1) + 1 - len(known)
            confirm(
                self.baseline, points, lambda point, number: self._run_round(point, first + number),  # noqa: B023
                affords=self._affords_round, seed=self._seed, known=known,
            )  # fmt: skip
            raced |= {*finalists}
            if not self._affords_round([self.baseline, *points] * DECIDING_ROUNDS):
                return

    def ablate(self) -> None:
        """Measures, as far as there is time, what each knob that was changed is worth."""
        winner = self.answer()
        variants = {name: point for name, point in self._variants(winner).items() if point != self.baseline}
        if not variants:
            return
        plan = ablation_plan(self._plan)
        names = {point: name for name, point in variants.items()}

        def run(point: Point, number: int) -> Burst:
            self._show_stage(ABLATION)
            what = f"{names[point]} put back" if point in names else "the winner"
            return self._interleaved(point, number, ABLATION, f"{what}, round {number + 1}", plan)

        def affords(points: Sequence[Point]) -> bool:
            shorter = plan.measure_seconds / self._plan.measure_seconds
            return shorter * self._round_seconds(points) <= self._budget.ablating

        ablate(winner, list(variants.values()), run, affords=affords, seed=self._seed)

    def ablation(self) -> tuple[AblationRow, ...]:
        """What each knob that was changed is worth, as far as it was measured."""
        winner = self.answer()
        # Where a single knob was changed, the winner without it is the baseline, and its worth is confirmed already.
        rounds = [*self._rounds(ABLATION), *self._rounds(CONFIRM)]
        return ablation_rows(winner, self.baseline, self._variants(winner), rounds)

    def _variants(self, winner: Point) -> dict[str, Point]:
        if winner == self.baseline:
            return {}
        return {name: point for name, point in put_back(winner, self.baseline).items() if self._refuse(point) is None}

    def verdict(self, point: Point) -> Numerics | None:
        """Whether a point trains what eager fp32 trains, if that is known."""
        return self._numerics.known(point) if self._numerics is not None else None

    def _agrees(self, point: Point) -> bool:
        """Whether nothing speaks against a finalist's numerics."""
        if self._numerics is None:
            return True
        if (verdict := self._numerics.known(point)) is None:
            steps = numerics_steps(point.config, self.log.trials, self._budget)
            deadline = burst_deadline(point.config, self.log.trials, self._plan, self._budget.remaining)
            began = self._budget.now()
            verdict = self._numerics.check(point, steps, deadline)
            self._checking_seconds += self._budget.now() - began
        return verdict.outcome != "disagrees"

    def confirmed(self) -> list[Confirmed]:
        """What has been confirmed so far, fastest first: also after an interruption."""
        failed = {t.burst.point for t in self.log.trials if t.stage == CONFIRM and not t.burst.ok}
        ranked = rank(self.baseline, self._rounds(), failed)
        if not self.drift.noisy:
            return ranked
        return [Confirmed(one.point, one.speedup.widened(self.drift.largest)) for one in ranked]

    def _finalists(self, raced: Collection[Point]) -> list[Point]:
        """The fastest points that are not the baseline; others than the first only if they came close, in time.

        Args:
            raced: Points that were measured anew already: others must have come to the best of them.
        """
        searched = ranked_points(trial for trial in self.log.trials if trial.round is None)
        rates = {alike[0].burst.point: mean_rate(alike) for alike in searched}
        anew = ranked_points(
            trial for trial in self.log.trials if trial.stage == CONFIRM and trial.burst.point in raced
        )
        reached = max([self._baseline_rate(), *(mean_rate(alike) for alike in anew)])
        near: list[Point] = []
        for point in sorted(rates, key=lambda point: rates[point], reverse=True):
            if point == self.baseline or point in raced:
                continue
            least = max(reached, (1 - NEAR_EQUAL) * rates[near[0]]) if near else reached
            if len(near) == MAX_FINALISTS or rates[point] < least:
                break
            if near and self.verdict(point) is None and self._checking_seconds > CHECKING_SHARE * self._budget.seconds:
                continue  # a further finalist is not worth more of the confirmation's time
            if self._agrees(point):  # else the next in line takes its place
                near.append(point)
        # With fewer rounds than are needed to decide, more finalists would only take time from the first.
        while len(near) > 1 and not self._affords_round([self.baseline, *near] * DECIDING_ROUNDS):
            near.pop()
        return near

    def _affords_round(self, points: Sequence[Point]) -> bool:
        return self._round_seconds(points) <= self._budget.confirming

    def _round_seconds(self, points: Sequence[Point]) -> float:
        return sum(map(self._seconds_of, points))

    def _seconds_of(self, point: Point) -> float:
        """What a burst is expected to cost."""
        return predicted_seconds(point.config, self.log.trials, self._plan)

    def _run_round(self, point: Point, number: int) -> Burst:
        return self._interleaved(point, number, CONFIRM, f"round {number + 1}", self._plan)

    def _interleaved(self, point: Point, number: int, stage: str, reason: str, plan: BurstPlan) -> Burst:
        deadline = burst_deadline(point.config, self.log.trials, plan, self._budget.remaining)
        trial = self.log.run(point, stage, reason, lambda: self._runner.run(point, plan, deadline), round_number=number)
        self._tell(trial.burst)
        return trial.burst

    def _baseline_rate(self) -> float:
        """Samples per second that a finalist must reach at least; 0 while the baseline has not run."""
        known = [trial.rate for trial in self.log.trials if trial.burst.point == self.baseline and trial.rate]
        return statistics.fmean(known) if known else 0.0

    def _rounds(self, stage: str = CONFIRM) -> list[Round]:
        """The rounds of a stage so far, those of an interrupted run included."""
        rounds: dict[int, Round] = {}
        for trial in self.log.trials:
            if (
                trial.stage == stage
                and trial.round is not None
                and trial.burst.measurement is not None
                and trial.burst.ok
            ):
                rounds.setdefault(trial.round, {})[trial.burst.point] = trial.burst.measurement
        return list(rounds.values())

    def _run(self, point: Point, stage: str, reason: str, *, incumbent: bool = True) -> Trial:
        self._show_stage(stage)
        trial = self.log.run(
            point, stage, reason, lambda: self._burst(point, self._budget.searching, incumbent=incumbent)
        )
        self._tell(trial.burst)
        return trial

    def _burst(self, point: Point, available: float, *, incumbent: bool = True) -> Burst:
        """Runs a burst; against an incumbent it may end early, once it cannot come near."""
        best = self.log.best() if incumbent else None
        if not self.log.trials:
            available = BASELINE_SHARE * self._budget.remaining
        incumbent_rate = best.rate * self.log.drift if best and best.rate else None
        plan = self._plan.model_copy(update={"incumbent_rate": incumbent_rate})
        return self._runner.run(point, plan, burst_deadline(point.config, self.log.trials, plan, available))

    def _tell(self, burst: Burst) -> None:
        best = self.log.best()
        self._progress.burst(burst, best.burst if best else None, self._budget.remaining)

    def _show_stage(self, stage: str) -> None:
        if stage != self._stage_shown:
            self._stage_shown = stage
            self._progress.stage(stage)

    def _affordable(self, point: Point) -> bool:
        first = not self.log.trials  # the baseline runs whatever it costs: without it there is nothing to compare
        available = self._budget.remaining if self._searched else self._budget.searching
        return first or self._seconds_of(point) <= available

    def _memory(self) -> MemoryModel | None:
        if self._memory_limit_bytes is None:
            return None
        return MemoryModel([trial.burst for trial in self.log.trials], self._memory_limit_bytes, self._device)

    def _largest_batch(self, point: Point) -> int | None:
        memory = self._memory()
        return memory.largest_batch(point) if memory is not None else None

    def _refuse(self, point: Point) -> str | None:
        return refusal(point, self.space, self.log.trials, self._memory())

    def _refuse_or_unaffordable(self, point: Point) -> str | None:
        return self._refuse(point) or (None if self._affordable(point) else "it would take longer than the budget")
