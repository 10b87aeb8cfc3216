"""The search loop: plays proposals, several at a time, then races the finalists, within a budget.

It knows bursts only as a `Runner` and time only as a `Budget`, so the same code runs on recorded surfaces with a
virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import optuna

from autotune.knobs import Space, buying_memory
from autotune.measuring import Headroom, Line, NumericsGuard, Point
from autotune.results.summary import headroom_text
from autotune.search.ablation import simpler
from autotune.search.bursts import Bursts
from autotune.search.ceilings import PARTS, Ceilings
from autotune.search.choice import Chooser
from autotune.search.confirmation import Confirmation
from autotune.search.fitting import fit
from autotune.search.proposal import ALLOCATOR, BASELINE, GAIN, SIMPLER, Proposal
from autotune.search.refusals import refusal
from autotune.search.rounds import MIN_DECIDED_ROUNDS

StoppedBy = Literal["budget", "target", "plateau", "exhausted", "interrupted"]
SAMPLER_TRIES = 50
"""The sampler counts as exhausted after this many known or refused proposals in a row. Not tuned."""
AWAIT_BASELINE_SHARE = 0.5
"""The least share of the budget that must remain to wait for another machine's first burst. Not tuned."""
HEADROOM_SHARE = 0.08
"""The largest share of the budget for measuring what a faster loader could gain; short budgets skip it. Not tuned."""
ALLOCATOR_SHARE = 0.08
"""The largest share of the budget for two fresh processes that compare allocators. Not tuned."""
SIMPLER_SHARE = 0.08
"""When this share of the budget is left to search, points with fewer changes than the best come first. Not tuned."""
AT_ONCE = 4
"""Candidates that challenge the incumbent in the same turns: a decision then costs 1.25 blocks a turn, not 2."""
NOTABLY_LARGER = 1.25
"""The largest batch that memory allows is tried if it is at least this many times the incumbent's. Not tuned."""

Challenger = tuple[optuna.Trial, Proposal]
"""A proposal and its open trial."""


class Search:
    """A search, from the baseline's first burst to the race of the finalists.

    Args:
        first: Proposals to try right after the baseline, such as those from other machines.
        utilization_target: Share of the compute ceiling at which the search may stop.
        at_least: As for `Confirmation`.
        by_sampler: The study's sampler makes the proposals; else a `Chooser` does.
        numerics: As for `Confirmation`.
        note: Receives notes for the result; None sends them to the progress alone.
        headroom: Measure first what a faster loader could gain at most.
    """

    def __init__(
        self,
        space: Space,
        bursts: Bursts,
        *,
        first: Sequence[Proposal] = (),
        utilization_target: float = 0.95,
        at_least: float | None = None,
        seed: int = 0,
        by_sampler: bool = False,
        numerics: NumericsGuard | None = None,
        note: Callable[[str], None] | None = None,
        headroom: bool = False,
    ) -> None:
        self.space = space
        self.log = bursts.log
        self.costs = bursts.costs
        self._bursts, self._budget = bursts, bursts.budget
        self._seed, self._by_sampler = seed, by_sampler
        self._note = note or bursts.progress.note
        self.ceilings = Ceilings(bursts.part_rate, self._affordable)
        self.confirmation = Confirmation(bursts, numerics=numerics, at_least=at_least, note=self._note)
        self._utilization_target = utilization_target
        self.headroom: Headroom | None = None  # None if it was not requested or there was no time
        self._asks_headroom = headroom
        self._first = list(first)
        self._waiting: Challenger | None = None
        self._chooser = self._make_chooser(space)
        self._searched = False

    @property
    def baseline(self) -> Point:
        """What candidates are compared with."""
        return self._bursts.baseline

    @property
    def baseline_trains(self) -> bool:
        """Whether a burst of the baseline has ended well; otherwise nothing can be compared with it."""
        return self.log.measurement(self.baseline) is not None

    def run(self) -> StoppedBy:
        """Searches, then races the finalists. Returns why the search stopped."""
        stopped_by = self._search()
        self._withdraw_waiting()
        self._bursts.release()
        self._searched = True
        if self.baseline_trains:
            self.log.sync()
            if self.log.may_confirm(self._may_wait) or not self._has_raced():
                self.confirmation.race()
                self.log.confirmed()
        return stopped_by

    def explain(self) -> None:
        """Measures the rates that the parts of training could reach alone."""
        if self.baseline_trains:
            answer = self.confirmation.answer()
            for part in PARTS:
                self.ceilings.rate(answer, part)

    def _search(self) -> StoppedBy:
        self.log.await_first(lambda: self._budget.remaining > AWAIT_BASELINE_SHARE * self._budget.seconds)
        earlier = [trial.burst for trial in self.log.trials if trial.burst.point == self.baseline]
        if not any(burst.ok or burst.outcome.is_memory for burst in earlier):  # another error may be gone by now
            self._bursts.search(Proposal(self.baseline, BASELINE, "what you train with today"))
        self._fit()  # a resumed run knows how its baseline ended
        if not self.baseline_trains:
            return "exhausted"  # nothing can be compared with it
        self.log.leave_out_disallowed(self.baseline)  # only now is it known what candidates keep of the baseline
        self._look_for_headroom()
        self._settle_allocator()
        while True:
            self.log.sync()
            if not self._bursts.affords(self._bursts.incumbent or self.baseline):  # the cheapest point
                return "budget"
            if self._is_past_the_bundle and self._reaches_target():
                return "target"
            is_late = self._bursts.searching_seconds <= SIMPLER_SHARE * self._budget.seconds
            turn = self._simpler_turn() if is_late and self._waiting is None else []
            turn = turn or self._next_turn() or self._simpler_turn()
            if not turn:
                return "exhausted" if self._by_sampler else self._chooser.ended
            self._bursts.challenge(turn)

    def _simpler_turn(self) -> list[Challenger]:
        """Points with fewer changes than the best: of equals, the one with the fewest changes is the answer."""
        best, points = self._bursts.incumbent, list[Point]()
        if best is None or best == self.baseline:
            return []
        tried = {trial.burst.point for trial in self.log.trials}
        available = self._bursts.searching_seconds
        start = Point(config=self.space.start, parameters=self.baseline.parameters)  # what pins hold is not reverted
        for point in simpler(best, start, self.log.trials, self.log.design):
            seconds = self._bursts.costs.challenge_seconds(point, best)
            if point in tried or seconds > available or self._plays_alone(point) or self._refuse_for_now(point):
                continue
            available -= seconds
            points.append(point)
            if len(points) == AT_ONCE:
                break
        reason = "some change of the best may gain nothing"
        taken = ((self.log.take(point), Proposal(point, SIMPLER, reason)) for point in points)
        return [(open_trial, proposal) for open_trial, proposal in taken if open_trial is not None]

    def _next_turn(self) -> list[Challenger]:
        """The next challengers of the incumbent: several that share its host, or one that needs its own or compiles."""
        turn: list[Challenger] = []
        if self._waiting is not None and self._refuse_for_now(self._waiting[1].point) is None:
            turn, self._waiting = [self._waiting], None
        self._withdraw_waiting()
        while len(turn) < AT_ONCE and not (turn and self._plays_alone(turn[0][1].point)) and self._has_room(turn):
            challenger = self._next([proposal.point for _, proposal in turn])
            if challenger is None:
                break
            if turn and self._plays_alone(challenger[1].point):
                self._waiting = challenger
                break
            turn.append(challenger)
        return turn

    def _withdraw_waiting(self) -> None:
        """Closes the trial of the challenger that waits for its turn, if there is one."""
        if self._waiting is not None:
            self.log.withdraw(self._waiting[0])
            self._waiting = None

    def _has_room(self, turn: Sequence[Challenger]) -> bool:
        """Whether there is time for one more challenger in a turn: a deadline cuts off all of them."""
        costs, incumbent = self._bursts.costs, self._bursts.incumbent
        seconds = [costs.challenge_seconds(proposal.point, incumbent) for _, proposal in turn]
        return not seconds or sum(seconds) + max(seconds) <= self._bursts.searching_seconds

    def _plays_alone(self, point: Point) -> bool:
        """Whether a candidate begins slowly, so that others would wait for it."""
        best, costs = self._bursts.incumbent, self._bursts.costs
        return best is None or not costs.shares_host(point, best) or not costs.is_compiled(point.config)

    def _next(self, playing: Sequence[Point]) -> Challenger | None:
        """The next proposal and its open trial: from other machines' results, else the chooser's or the sampler's."""
        while self._first:
            proposal = self._first.pop(0)
            tried = {trial.burst.point for trial in self.log.trials} | {*playing}
            is_new = proposal.point not in tried and self._refuse_for_now(proposal.point) is None
            if is_new and (open_trial := self.log.take(proposal.point)) is not None:
                return open_trial, proposal
        if not self._by_sampler:
            while (chosen := self._chooser.next(playing)) is not None:
                if (open_trial := self.log.take(chosen.point)) is not None:
                    return open_trial, chosen
            return None

        def refuse(point: Point) -> str | None:
            return "it plays already" if point in playing else self._refuse_for_now(point)

        proposed = self.log.propose(refuse, SAMPLER_TRIES)
        if proposed is None:
            return None
        open_trial, point = proposed
        return open_trial, Proposal(point, GAIN, f"proposed by {type(self.log.study.sampler).__name__}")

    def _make_chooser(self, space: Space) -> Chooser:
        return Chooser(space, self._bursts, self._refuse_for_now, self._larger_batch, self._seed)

    @property
    def _is_past_the_bundle(self) -> bool:
        return any(trial.stage == GAIN for trial in self.log.trials)

    def _settle_allocator(self) -> None:
        """Compares allocators once on a CPU, in fresh processes, since malloc keeps state. Holds the better one."""
        choices = self.space.choices.get("allocator")
        if self._bursts.device != "cpu" or choices is None or self.log.measurement(self.baseline) is None:
            return
        held = self.space.preferred.get("allocator", self.baseline.config.allocator)
        tuned = self.baseline.changed({"allocator": held})
        compared = next(
            (trial for trial in self.log.trials if trial.stage == ALLOCATOR and trial.burst.point == tuned), None
        )
        pair = compared.pair if compared is not None else None
        seconds = self._bursts.costs.round_seconds([self.baseline, tuned], ALLOCATOR)
        is_alone = tuned != self.baseline and self.space.start == self.baseline.config  # no pin differs as well
        if compared is None and is_alone and seconds <= ALLOCATOR_SHARE * self._budget.seconds:
            pair = self._bursts.compare_fresh(tuned, ALLOCATOR, "fresh processes show what malloc's settings gain")
            compared = self.log.trials[-1]
        failed = compared is not None and not compared.burst.ok
        if failed or (pair is not None and pair.verdict == "slower"):
            held = self.baseline.config.allocator
        space = self.space.holding("allocator", held)
        self.log.move_to(space)
        self._chooser = self._make_chooser(space)

    def _fit(self) -> None:
        """If the baseline ran out of memory, continues from the smallest change to it that trains."""
        bursts = (trial.burst for trial in self.log.trials if trial.burst.point == self.baseline)
        ended = next((burst for burst in bursts if burst.outcome.is_memory), None)
        if ended is None or self.baseline_trains:
            return

        def agrees(point: Point) -> bool:  # or there is no time for a check
            verdict = self.confirmation.check(point)
            return verdict is None or verdict.outcome != "disagrees"

        fitted, summary = fit(self.baseline, self.space, self._bursts, ended, agrees)
        self._note(summary)
        if fitted is not None:
            self._bursts.baseline = fitted
            self.space = self.space.around(fitted.config)
            self.log.move_to(self.space)
            self._chooser = self._make_chooser(self.space)

    def _look_for_headroom(self) -> None:
        """Reports, before the search spends its time, the most that a faster loader could gain."""
        measured = self.log.measurement(self.baseline)
        seconds = self._bursts.costs.round_seconds([self.baseline] * 2)
        if not self._asks_headroom or measured is None or seconds > HEADROOM_SHARE * self._budget.seconds:
            return
        self.headroom = self._bursts.headroom(self.baseline)
        if self.headroom is not None:
            self.ceilings.learn(self.baseline, "compute", self.headroom.cached_samples_per_second)
            self._bursts.progress.note(headroom_text(self.headroom))

    def _reaches_target(self) -> bool:
        """Whether the best point reaches the utilization target, of the GPU's time and of its compute ceiling.

        A ceiling alone is no target: another precision, or compiling, raises it. It also bounds the rate only, so a
        search for an objective that is no rate continues.
        """
        best = self.log.incumbent()
        measured = best.burst.measurement if best is not None else None
        if best is None or measured is None or best.burst.rate is None or not self.log.objective.is_rate:
            return False
        busy = measured.seen.device_activity_fraction
        if busy is None or busy < self._utilization_target:
            return False
        ceiling = self.ceilings.rate(best.burst.point, "compute")
        return ceiling is not None and best.burst.rate >= self._utilization_target * ceiling

    def _affordable(self, point: Point) -> bool:
        """Whether there is time for a burst of a point alone."""
        available = self._budget.remaining if self._searched else self._bursts.affordable_seconds(point)
        return self._bursts.costs.fresh_seconds(point, self._bursts.plan) <= available

    def _larger_batch(self, point: Point) -> Iterator[tuple[Point, str]]:
        """The largest batch that memory allows with a point's other knobs, and why, if the effective batch is free.

        If the search space has larger ones, a batch for which memory must be bought comes next.
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

    def memory_line(self, point: Point) -> Line | None:
        """How memory grows with the batch, with a point's other knobs; None if not known."""
        memory = self._bursts.costs.memory
        return memory.line(point) if memory is not None else None

    def _largest_batch(self, point: Point) -> int | None:
        """The largest batch that memory allows with a point's other knobs; None if not known."""
        memory, line = self._bursts.costs.memory, self.memory_line(point)
        if memory is None or line is None or line.sample_bytes > 0:
            return memory.largest_batch(point) if memory is not None else None
        # Memory that does not grow with the batch sets no limit; the search space does.
        choices = self.space.choices.get("batch_size")
        fits = choices is not None and line.base_bytes <= memory.limit_bytes
        return max(int(size or 0) for size in choices.values) if choices is not None and fits else None

    def _refuse(self, point: Point) -> str | None:
        return refusal(point, self.space, self.log.trials, self._bursts.costs.memory)

    def _refuse_for_now(self, point: Point) -> str | None:
        """Why a point must not run, or not now; None if it may."""
        too_long = None if self._bursts.affords(point) else "it would take longer than the time that is left"
        return self._refuse(point) or self.log.elsewhere(point) or too_long

    def _has_raced(self) -> bool:
        """Whether rounds hold the best point: another machine may have confirmed before this point was found."""
        best = self.log.incumbent()
        raced = {trial.burst.point for trial in self.log.trials if trial.round is not None}
        return best is None or best.burst.point in {*raced, self.baseline}

    def _may_wait(self) -> bool:
        """Whether there is time to wait for another machine's rounds and, if it has died, still to play them here."""
        best = self.log.incumbent()
        points = [self.baseline] if best is None else [self.baseline, best.burst.point]
        return self._bursts.costs.round_seconds(points * MIN_DECIDED_ROUNDS) < self._budget.remaining
