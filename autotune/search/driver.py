"""The search loop: the stages, then the sampler, then the race of the finalists, inside a budget.

It knows bursts only as a `Runner`, and time only as a `Budget`, so that the very same code runs on recorded surfaces
with a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from autotune.bursts.runner import Runner
from autotune.hardware import DeviceKind
from autotune.knobs import Space
from autotune.measuring import Headroom, MemoryModel, NumericsGuard, Point
from autotune.results.summary import headroom_text
from autotune.search.ahead import Ahead
from autotune.search.bursts import Bursts
from autotune.search.ceilings import Ceilings
from autotune.search.confirmation import Confirmation
from autotune.search.fitting import fit
from autotune.search.progress import Progress
from autotune.search.refusals import refusal
from autotune.search.rounds import MIN_DECIDED_ROUNDS
from autotune.search.stages import BASELINE, SAMPLER, Proposal, Stages
from autotune.search.stopping import Budget, all_fail_alike, plateaued, sampled_enough
from autotune.search.trials import TrialLog

StoppedBy = Literal["budget", "target", "plateau", "exhausted", "interrupted"]
SAMPLER_TRIES = 50
"""Proposals in a row that are known or refused, after which nothing new is expected of the sampler. Chosen."""
AWAIT_BASELINE_SHARE = 0.5
"""Of the budget: so much is left when another machine's first burst is no longer waited for. Chosen."""
HEADROOM_SHARE = 0.08
"""Of the budget, at most, for what a faster loader could bring: in shorter ones the search needs it more. Chosen."""


class Search:
    """One search.

    Args:
        space: What is searched.
        baseline: What the user trains with today.
        runner: Runs bursts.
        log: Where they are kept.
        budget: The wall clock.
        progress: Who is told.
        first: What to try right after the baseline, such as what other machines' results suggest.
        utilization_target: Share of the compute ceiling at which the search may stop.
        at_least: The share of the fastest config's rate that the answer must reach; None: any.
        seed: Of the confirmation's order.
        memory_limit_bytes: The memory target, for which the largest batch is predicted.
        device: The kind of device.
        cpus: Processors that may be used; where some are to spare, what compiles does so beside others.
        numerics: Checks finalists against eager fp32; None trusts them, as where recordings are replayed.
        every_fit: Whether all changes are measured that make a baseline fit into memory, rather than the first.
        note: Told what the result should say as well; the progress alone when None.
        staged: Whether stages come before the sampler; without, only the baseline does.
        sampled: Whether a sampler comes after them.
        headroom: Whether the search begins by asking what a faster loader could bring at most.

    Attributes:
        headroom: What came of that; None where it was not asked, or there was no time.
        confirms: Whether this search confirms its answer itself, and no other machine that shares its study.
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
        first: Sequence[Proposal] = (),
        utilization_target: float = 0.95,
        at_least: float | None = None,
        seed: int = 0,
        memory_limit_bytes: int | None = None,
        device: DeviceKind = "cpu",
        cpus: int = 1,
        numerics: NumericsGuard | None = None,
        every_fit: bool = False,
        note: Callable[[str], None] | None = None,
        staged: bool = True,
        sampled: bool = True,
        headroom: bool = False,
    ) -> None:
        self.space = space
        self.baseline = baseline
        self.log = log
        self._note, self._numerics, self._every_fit = note or progress.note, numerics, every_fit
        self._bursts = Bursts(baseline, runner, log, budget, progress, note=self._note, seed=seed)
        self.ceilings = Ceilings(self._bursts.part_rate, self._affordable)
        self._at_least = at_least
        self.confirmation = self._confirmation()
        self._budget = budget
        self._utilization_target = utilization_target
        self._stages = Stages(
            space,
            baseline,
            self._refuse_for_now,
            first=first,
            largest_batch=self._largest_batch,
            fewest_workers=self._fewest_workers,
            seconds_of=self._bursts.seconds_of,
            seconds_left=lambda: self._bursts.searching_seconds,
        )
        self._memory_limit_bytes, self._device = memory_limit_bytes, device
        self._staged, self._sampled = staged, sampled
        self.headroom: Headroom | None = None
        self._asks_headroom, self._progress = headroom, progress
        self._ahead = Ahead(self._bursts, cpus, device, memory_limit_bytes)
        self._searched = False
        self.confirms = True

    def run(self) -> StoppedBy:
        """Searches, then races the finalists; returns why the search stopped."""
        stopped_by = self._search()
        self._bursts.release()
        self._searched = True
        if self.log.incumbent() is not None:
            self.log.sync()
            self.confirms = self.log.may_confirm(self._may_wait) or not self._has_raced()
            if self.confirms:
                self.confirmation.race()
                self.log.confirmed()
        return stopped_by

    def explain(self) -> None:
        """Measures what each change is worth, and what the parts of training could reach alone.

        Where there is nothing to explain, or too little time, what was kept for it narrows the answer's interval.
        """
        if self.confirms and not self.confirmation.ablate():
            self.confirmation.race_on()
        if self.log.incumbent() is not None:
            answer = self.confirmation.answer()
            self.ceilings.compute(answer)
            self.ceilings.loader(answer)

    def _fewest_workers(self, point: Point, counts: Sequence[int]) -> tuple[int, str] | None:
        """Of some counts, the fewest that feed a point's computing; not known while a compiler slows what is timed."""
        return None if self._ahead.is_compiling else self.ceilings.fewest_workers(point, counts)

    def _search(self) -> StoppedBy:
        self.log.await_first(lambda: self._budget.remaining > AWAIT_BASELINE_SHARE * self._budget.seconds)
        self._fit()  # of an interrupted run the baseline's end is known
        if self.log.trials:
            self._look_for_headroom()
        while (proposal := self._ahead.next(self._affordable_proposal)) is not None:
            self._bursts.search(proposal.point, proposal.stage, proposal.reason)
            if proposal.stage == BASELINE:
                self._fit()
                self._look_for_headroom()
            if all_fail_alike(self.log.trials):
                return "exhausted"
        if not self._affordable(self.baseline):
            return "budget"
        if self._reaches_target():
            return "target"
        return self._sample() if self._sampled else "exhausted"

    def _fit(self) -> None:
        """Where the baseline ran out of memory: goes on from the smallest change to it that trains."""
        ended = next((trial.burst for trial in self.log.trials if trial.burst.point == self.baseline), None)
        if ended is None or not ended.outcome.is_memory:
            return
        agrees, every = self.confirmation.agrees, self._every_fit
        fitted, told = fit(self.baseline, self.space, self._bursts, ended, agrees, every=every)
        self._note(told)
        if fitted is not None:
            self.baseline = self._bursts.baseline = fitted
            self.space = self.space.around(fitted.config)
            self.log.widen(self.space)
            self.confirmation = self._confirmation()
            self._stages = replace(self._stages, space=self.space, baseline=fitted)

    def _look_for_headroom(self) -> None:
        """Tells, before the search spends its time, what a faster loader could bring at most."""
        plan, known = self._bursts.plan, self.log.measurement(self.baseline)
        both = self._bursts.round_seconds([self.baseline] * 2)
        seconds = max(both, self._bursts.seconds_of(self.baseline) + plan.measure_seconds)
        if not self._asks_headroom or known is None or seconds > HEADROOM_SHARE * self._budget.seconds:
            return
        self.headroom = self._bursts.headroom(self.baseline)
        if self.headroom is not None:
            self.ceilings.learn(self.baseline, "compute", self.headroom.cached_samples_per_second)
            self._progress.note(headroom_text(self.headroom))

    def _confirmation(self) -> Confirmation:
        knobs = [*self.space.choices, *self.space.parameters]
        return Confirmation(
            self.baseline, self._bursts, self._refuse, knobs=knobs, numerics=self._numerics, at_least=self._at_least
        )

    def _affordable_proposal(self) -> Proposal | None:
        """What the stages ask for next; None when that is nothing, or costs too much: a sampler may know cheaper."""
        self.log.sync()
        proposal = self._stages.next(self.log.trials)
        if proposal is None or not (self._staged or proposal.stage == BASELINE):
            return None
        return proposal if self._affordable(proposal.point) else None

    def _sample(self) -> StoppedBy:
        """Lets the sampler propose until the budget, a plateau, or nothing new."""
        while self._affordable(self.baseline):  # as cheap as any
            self.log.sync()
            if plateaued(self.log.trials) or self._is_better_proven():
                return "plateau"
            proposed = self.log.propose(self._refuse_or_unaffordable, SAMPLER_TRIES)
            if proposed is None:
                return "exhausted"
            asked, point = proposed
            self._bursts.show_stage(SAMPLER)
            burst, pair = self._bursts.measure(point)
            self.log.finish(asked, SAMPLER, f"proposed by {type(self.log.study.sampler).__name__}", burst, pair)
            self._bursts.tell(burst)
        return "budget"

    def _is_better_proven(self) -> bool:
        """Whether something was found, and the time that is left is worth more to its proof than to the sampler."""
        best, affordable = self.log.incumbent(), self._bursts.searching_seconds / self._bursts.seconds_of(self.baseline)
        return best is not None and best.burst.point != self.baseline and sampled_enough(self.log.trials, affordable)

    def _reaches_target(self) -> bool:
        """Whether the best keeps the GPU as busy as was asked, and comes as close to what its computing could reach.

        A ceiling alone is no target: another precision, or compiling, raises it. And it is one of the rate: a search
        for what does not follow that goes on.
        """
        best = self.log.incumbent()
        telemetry = (
            best.burst.measurement.telemetry if best is not None and best.burst.measurement is not None else None
        )
        busy = telemetry.device_activity_fraction if telemetry is not None else None
        if best is None or best.burst.rate is None or busy is None or busy < self._utilization_target:
            return False
        if not self.log.objective.follows_rate:
            return False
        ceiling = self.ceilings.compute(best.burst.point)
        return ceiling is not None and best.burst.rate >= self._utilization_target * ceiling

    def _affordable(self, point: Point) -> bool:
        first = not self.log.trials  # the baseline runs whatever it costs: without it there is nothing to compare
        available = self._budget.remaining if self._searched else self._bursts.affordable_seconds(point)
        return first or self._bursts.seconds_of(point) <= available

    def _memory(self) -> MemoryModel | None:
        if self._memory_limit_bytes is None:
            return None
        return MemoryModel([trial.burst for trial in self.log.trials], self._memory_limit_bytes, self._device)

    def _largest_batch(self, point: Point) -> int | None:
        memory = self._memory()
        line = memory.line(point) if memory is not None else None
        if memory is None or line is None or line.sample_bytes > 0:
            return memory.largest_batch(point) if memory is not None else None
        # Memory that does not grow with the batch sets no limit: the largest that is searched does.
        choices = self.space.choices.get("batch_size")
        fits = choices is not None and line.base_bytes <= memory.limit_bytes
        return max(int(size or 0) for size in choices.values) if choices is not None and fits else None

    def _refuse(self, point: Point) -> str | None:
        return refusal(point, self.space, self.log.trials, self._memory())

    def _refuse_for_now(self, point: Point) -> str | None:
        """Passes over what takes too long to compile: cheaper proposals may follow."""
        expensive = point.config.compile_mode is not None and not self._affordable(point)
        too_long = "compiling it would take longer than there is" if expensive else None
        return self._refuse(point) or self._ahead.refusal(point) or self.log.elsewhere(point) or too_long

    def _has_raced(self) -> bool:
        """Whether rounds hold the best point: another machine may have confirmed before it was found."""
        best = self.log.incumbent()
        raced = {trial.burst.point for trial in self.log.trials if trial.round is not None}
        return best is None or best.burst.point in {*raced, self.baseline}

    def _may_wait(self) -> bool:
        """Whether there is time to wait for another machine's rounds: should it be gone, this one needs some itself."""
        best = self.log.incumbent()
        points = [self.baseline] if best is None else [self.baseline, best.burst.point]
        return self._bursts.round_seconds(points * MIN_DECIDED_ROUNDS) < self._budget.remaining

    def _refuse_or_unaffordable(self, point: Point) -> str | None:
        return (
            self._refuse(point)
            or self.log.elsewhere(point)
            or (None if self._affordable(point) else "it would take longer than the budget")
        )
