"""The search loop: what the sampler proposes, several at a time, then the race of the finalists, inside a budget.

It knows bursts only as a `Runner`, and time only as a `Budget`, so that the very same code runs on recorded surfaces
with a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import optuna

from autotune.bursts.runner import Runner
from autotune.hardware import DeviceKind
from autotune.knobs import Space, buying_memory
from autotune.measuring import Headroom, NumericsGuard, Point
from autotune.results.summary import headroom_text
from autotune.search.ablation import simpler
from autotune.search.bursts import Bursts
from autotune.search.ceilings import Ceilings
from autotune.search.choice import Chooser
from autotune.search.confirmation import Confirmation
from autotune.search.fitting import fit
from autotune.search.progress import Progress
from autotune.search.proposal import ALLOCATOR, BASELINE, GAIN, SIMPLER, Proposal
from autotune.search.refusals import refusal
from autotune.search.rounds import MIN_DECIDED_ROUNDS
from autotune.search.sampler import BayesSampler
from autotune.search.stopping import Budget, all_fail_alike
from autotune.search.trials import TrialLog

StoppedBy = Literal["budget", "target", "plateau", "exhausted", "interrupted"]
SAMPLER_TRIES = 50
"""After this many proposals in a row that are known or refused, the sampler is exhausted. Not tuned."""
AWAIT_BASELINE_SHARE = 0.5
"""The share of the budget that must remain for waiting for another machine's first burst. Not tuned."""
HEADROOM_SHARE = 0.08
"""The largest share of the budget for measuring what a faster loader could gain; short budgets leave it out. Not
tuned."""
ALLOCATOR_SHARE = 0.08
"""The largest share of the budget for two fresh processes that compare allocators. Not tuned."""
SIMPLER_SHARE = 0.08
"""The largest share of the budget for points with fewer changes than the best. Not tuned."""
AT_ONCE = 4
"""Candidates that play the incumbent in the same turns: a decision then costs 1.25 blocks a turn instead of 2."""
NOTABLY_LARGER = 1.25
"""The largest batch that memory allows is tried if it is this many times that of the incumbent, or more. Not tuned."""

Asked = tuple[optuna.Trial, Proposal]


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
        numerics: Checks finalists against eager fp32; None trusts them, as where recordings are replayed.
        every_fit: Whether all changes are measured that make a baseline fit into memory, rather than the first.
        note: Told what the result should say as well; the progress alone when None.
        headroom: Whether the search begins by asking what a faster loader could bring at most.

    Attributes:
        headroom: What came of that; None where it was not asked, or there was no time.
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
        numerics: NumericsGuard | None = None,
        every_fit: bool = False,
        note: Callable[[str], None] | None = None,
        headroom: bool = False,
    ) -> None:
        self.space = space
        self.baseline = baseline
        self.log = log
        self._seed = seed
        self._note, self._numerics, self._every_fit = note or progress.note, numerics, every_fit
        self._bursts = Bursts(baseline, runner, log, budget, progress, device, memory_limit_bytes)
        self.ceilings = Ceilings(self._bursts.part_rate, self._affordable)
        self._at_least = at_least
        self.confirmation = self._confirmation()
        self._budget = budget
        self._utilization_target = utilization_target
        self._device = device
        self.headroom: Headroom | None = None
        self._asks_headroom, self._progress = headroom, progress
        self._first = list(first)
        self._waiting: Asked | None = None
        self._chooser = self._make_chooser(space)
        self._searched = False

    def run(self) -> StoppedBy:
        """Searches, then races the finalists; returns why the search stopped."""
        stopped_by = self._search()
        self._bursts.release()
        self._searched = True
        if self.log.incumbent() is not None:
            self.log.sync()
            if self.log.may_confirm(self._may_wait) or not self._has_raced():
                self.confirmation.race()
                self.log.confirmed()
        return stopped_by

    def explain(self) -> None:
        """Measures what the parts of training could reach alone."""
        if self.log.incumbent() is not None:
            answer = self.confirmation.answer()
            self.ceilings.compute(answer)
            self.ceilings.loader(answer)

    def _search(self) -> StoppedBy:
        self.log.await_first(lambda: self._budget.remaining > AWAIT_BASELINE_SHARE * self._budget.seconds)
        if all(trial.burst.point != self.baseline for trial in self.log.trials):
            self._bursts.search(Proposal(self.baseline, BASELINE, "what you train with today"))
        self._fit()  # of an interrupted run the baseline's end is known
        self._look_for_headroom()
        self._settle_allocator()
        while True:
            self.log.sync()
            if all_fail_alike(self.log.trials):
                return "exhausted"
            if not self._bursts.affords(self.baseline):  # as cheap as any
                return "budget"
            if self._is_past_the_bundle and self._reaches_target():
                return "target"
            is_late = self._bursts.searching_seconds <= SIMPLER_SHARE * self._budget.seconds
            turn = ([] if is_late and self._waiting is None else self._next_turn()) or self._simpler_turn()
            if not turn:
                return "budget" if is_late else self._chooser.ended if self._is_bayes else "exhausted"
            self._bursts.challenge(turn)

    def _simpler_turn(self) -> list[Asked]:
        """Points with fewer changes than the best: of equals, the one with the fewest changes is the answer."""
        best, points = self._bursts.incumbent, list[Point]()
        if best is None or best == self.baseline:
            return []
        tried = {trial.burst.point for trial in self.log.trials}
        left = self._bursts.searching_seconds
        for point in simpler(best, self.baseline, self.log.trials, self.log.design):
            if point not in tried and not self._plays_alone(point) and self._refuse_for_now(point) is None:
                left -= self._bursts.costs.challenge_seconds(point, best)
                if left > 0 and len(points) < AT_ONCE:
                    points.append(point)
        reason = "some change of the best may gain nothing"
        return [(self.log.ask(point), Proposal(point, SIMPLER, reason)) for point in points]

    def _next_turn(self) -> list[Asked]:
        """What challenges the incumbent next: several that share its host, or one that needs its own, or compiles."""
        turn = [self._waiting] if self._waiting is not None else []
        self._waiting = None
        while len(turn) < AT_ONCE and not (turn and self._plays_alone(turn[0][1].point)) and self._has_room(turn):
            asked = self._next([proposal.point for _, proposal in turn])
            if asked is None:
                break
            if turn and self._plays_alone(asked[1].point):
                self._waiting = asked
                break
            turn.append(asked)
        return turn

    def _has_room(self, turn: Sequence[Asked]) -> bool:
        """Whether there is time for one more beside those of a turn: all are cut off where one is."""
        seconds = [self._bursts.costs.challenge_seconds(one.point, self._bursts.incumbent) for _, one in turn]
        return not seconds or sum(seconds) + max(seconds) <= self._bursts.searching_seconds

    def _plays_alone(self, point: Point) -> bool:
        """Whether a candidate takes long to begin: others would wait for it."""
        best, costs = self._bursts.incumbent, self._bursts.costs
        return best is None or not costs.shares_host(point, best) or not costs.is_compiled(point.config)

    def _next(self, playing: Sequence[Point]) -> Asked | None:
        """The next proposal, with its open trial: of other machines' results, else of the sampler."""
        while self._first:
            proposal = self._first.pop(0)
            tried = {trial.burst.point for trial in self.log.trials} | {*playing}
            if proposal.point not in tried and self._refuse_for_now(proposal.point) is None:
                return self.log.ask(proposal.point), proposal
        if self._is_bayes:
            chosen = self._chooser.next(self.log.trials, playing)
            return None if chosen is None else (self.log.ask(chosen.point), chosen)

        def refuse(point: Point) -> str | None:
            return "it plays already" if point in playing else self._refuse_for_now(point)

        proposed = self.log.propose(refuse, SAMPLER_TRIES)
        if proposed is None:
            return None
        asked, point = proposed
        return asked, Proposal(point, GAIN, f"proposed by {type(self.log.study.sampler).__name__}")

    def _make_chooser(self, space: Space) -> Chooser:
        """What the search proposes in a space; the study's sampler, if it is ours, draws the same."""
        bursts = self._bursts
        chooser = Chooser(
            space, self.baseline, bursts.costs, self._refuse_for_now, self._larger_batch,
            lambda: bursts.searching_seconds, self.log.incumbent, self.log.design, self._seed,
        )  # fmt: skip
        sampler = self.log.study.sampler
        self._is_bayes = isinstance(sampler, BayesSampler)
        if isinstance(sampler, BayesSampler):
            sampler.follow(
                lambda: chooser.next(self.log.trials),
                lambda proposal: self.log.parameters(proposal.point),
                self.log.distributions,
            )
        return chooser

    @property
    def _is_past_the_bundle(self) -> bool:
        return any(trial.stage == GAIN for trial in self.log.trials)

    def _settle_allocator(self) -> None:
        """On a CPU malloc's state is the history of a process: fresh ones compare allocators once, and one is held."""
        choices = self.space.choices.get("allocator")
        if self._device != "cpu" or choices is None or self.log.measurement(self.baseline) is None:
            return
        held = self.space.preferred.get("allocator", self.baseline.config.allocator)
        tuned = Point(
            config=self.space.changed(self.baseline.config, {"allocator": held}), parameters=self.baseline.parameters
        )
        known = next(
            (trial for trial in self.log.trials if trial.stage == ALLOCATOR and trial.burst.point == tuned), None
        )
        pair = known.pair if known is not None else None
        seconds = self._bursts.costs.round_seconds([self.baseline, tuned], ALLOCATOR)
        if known is None and tuned != self.baseline and seconds <= ALLOCATOR_SHARE * self._budget.seconds:
            pair = self._bursts.compare_fresh(tuned, ALLOCATOR, "fresh processes tell what malloc's settings are worth")
            known = self.log.trials[-1]
        failed = known is not None and not known.burst.ok
        if failed or (pair is not None and pair.verdict == "slower"):
            held = self.baseline.config.allocator
        space = self.space.holding("allocator", held)
        self.log.move_to(space)
        self._chooser = self._make_chooser(space)

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
            self.log.move_to(self.space)
            self.confirmation = self._confirmation()
            self._chooser = self._make_chooser(self.space)

    def _look_for_headroom(self) -> None:
        """Tells, before the search spends its time, what a faster loader could bring at most."""
        known = self.log.measurement(self.baseline)
        seconds = self._bursts.costs.round_seconds([self.baseline] * 2)
        if not self._asks_headroom or known is None or seconds > HEADROOM_SHARE * self._budget.seconds:
            return
        self.headroom = self._bursts.headroom(self.baseline)
        if self.headroom is not None:
            self.ceilings.learn(self.baseline, "compute", self.headroom.cached_samples_per_second)
            self._progress.note(headroom_text(self.headroom))

    def _confirmation(self) -> Confirmation:
        return Confirmation(self.baseline, self._bursts, numerics=self._numerics, at_least=self._at_least)

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
        if not self.log.objective.is_rate:
            return False
        ceiling = self.ceilings.compute(best.burst.point)
        return ceiling is not None and best.burst.rate >= self._utilization_target * ceiling

    def _affordable(self, point: Point) -> bool:
        """Whether there is time for a burst of a point by itself."""
        available = self._budget.remaining if self._searched else self._bursts.affordable_seconds(point)
        return self._bursts.costs.fresh_seconds(point.config, self._bursts.plan) <= available

    def _larger_batch(self, point: Point) -> Iterator[tuple[Point, str]]:
        """Where the effective batch is free: the largest batch that memory allows with a point's other knobs, and why.

        Where it is not the largest that is searched, one for which memory must be bought comes next.
        """
        choices, largest = self.space.choices.get("batch_size"), self._largest_batch(point)
        if self.space.effective_batch is not None or choices is None or largest is None:
            return
        most = max(int(size or 0) for size in choices.values)
        batch = min(largest - largest % 8 if largest >= 8 else largest, most)
        if batch >= NOTABLY_LARGER * point.config.batch_size:
            changed = self.space.changed(point.config, {"batch_size": batch})
            yield Point(config=changed, parameters=point.parameters), f"memory allows a batch of {largest}"
        for knob in buying_memory() if batch < most else ():
            bought = self.space.choices[knob].values[-1] if knob in self.space.choices else None
            if bought is not None and getattr(point.config, knob) != bought:
                changed = self.space.changed(point.config, {knob: bought, "batch_size": min(2 * batch, most)})
                why = f"memory allows no more than {largest}, and {knob}={bought} may leave room for twice that"
                yield Point(config=changed, parameters=point.parameters), why

    def _largest_batch(self, point: Point) -> int | None:
        """The largest batch that memory allows with a point's other knobs; None where it is not known."""
        memory = self._bursts.costs.memory
        line = memory.line(point) if memory is not None else None
        if memory is None or line is None or line.sample_bytes > 0:
            return memory.largest_batch(point) if memory is not None else None
        # Memory that does not grow with the batch sets no limit: the largest that is searched does.
        choices = self.space.choices.get("batch_size")
        fits = choices is not None and line.base_bytes <= memory.limit_bytes
        return max(int(size or 0) for size in choices.values) if choices is not None and fits else None

    def _refuse(self, point: Point) -> str | None:
        return refusal(point, self.space, self.log.trials, self._bursts.costs.memory)

    def _refuse_for_now(self, point: Point) -> str | None:
        """Why a point must not run, or not now."""
        too_long = None if self._bursts.affords(point) else "it would take longer than there is"
        return self._refuse(point) or self.log.elsewhere(point) or too_long

    def _has_raced(self) -> bool:
        """Whether rounds hold the best point: another machine may have confirmed before it was found."""
        best = self.log.incumbent()
        raced = {trial.burst.point for trial in self.log.trials if trial.round is not None}
        return best is None or best.burst.point in {*raced, self.baseline}

    def _may_wait(self) -> bool:
        """Whether there is time to wait for another machine's rounds: should it be gone, this one needs some itself."""
        best = self.log.incumbent()
        points = [self.baseline] if best is None else [self.baseline, best.burst.point]
        return self._bursts.costs.round_seconds(points * MIN_DECIDED_ROUNDS) < self._budget.remaining
