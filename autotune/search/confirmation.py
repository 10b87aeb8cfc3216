"""The end of a search: the finalists race the baseline in interleaved rounds.

Only these measurements become headlines: the best of the search's many figures is biased upward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from autotune.bursts.hosts.endings import LONGER
from autotune.bursts.hosts.host import END_SECONDS
from autotune.measuring import (
    APART_ERROR,
    Burst,
    Measurement,
    Numerics,
    NumericsGuard,
    Outcome,
    Point,
    Rounds,
    Speedup,
    pool,
)
from autotune.results.result import CONFIRM, PROVING, UNINTERRUPTED, AblationRow
from autotune.search.ablation import ablation_rows, reverted
from autotune.search.bursts import FEWEST_ROUNDS, Bursts
from autotune.search.ranking import Standing
from autotune.search.rounds import MIN_DECIDED_ROUNDS, TIE, Confirmed, as_good_as_the_fastest, confirm, rank

CHECKING_SHARE = 0.08
"""The share of the budget for numerics checks of further finalists. Each check is expected to take as long as all
before it. Not tuned."""
NOTABLE_MEMORY = 1.25
"""Among equally fast points, one counts as expensive above this many times the least memory of any. Not tuned."""
UNINTERRUPTED_SHARE, UNINTERRUPTED_LEAST_SECONDS, UNINTERRUPTED_MOST_SECONDS = 0.05, 5.0, 20.0
"""The share of the budget for the uninterrupted run of each of two configs, and its least and most seconds, including
the warm-up. Turns cost the faster side of a small CNN up to 4 %, which such a run shows. Not tuned."""
UNINTERRUPTED_OVERRUN = 1.4
"""How much longer than asked such a run may take: its blocks are whole epochs where these are short. Runs of 6 s took 7
to 10 s."""
UNINTERRUPTED_MOST_SHARE = 0.2
"""The largest share of the budget for both runs and their starts; in smaller budgets, rounds are worth more."""


class Confirmation:
    """Races the finalists. It can answer at any time, even after an interruption.

    Args:
        numerics: Checks finalists against eager fp32; None trusts them, as replays of recordings do.
        at_least: Share of the fastest config's rate that the answer must reach; None accepts any.
        note: Receives a message about a finalist that cannot be checked.
    """

    def __init__(
        self,
        bursts: Bursts,
        *,
        numerics: NumericsGuard | None,
        at_least: float | None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._bursts = bursts
        self._numerics, self._checking_seconds = numerics, 0.0
        self._at_least = at_least
        self._note = note
        self._unchecked: set[Point] = set()  # for lack of time

    def answer(self) -> Point:
        """The point to train with: only a confirmed gain displaces the baseline, and the cheapest of equals wins.

        Equals that cost the same are ordered by speed. What takes part in rounds has been checked, if not by this run.
        """
        fast = [entry for entry in self._fast_enough() if self._disagreement(entry.point) is None]
        sound = [entry for entry in fast if self.ran_faster(entry) is None and self._checked(entry).confirmed]
        equals = as_good_as_the_fastest(sound, self._rounds)
        if not equals:
            return self._baseline
        memory = {point: self._memory(point, CONFIRM) for point in equals}
        return min(equals, key=lambda point: self._expense(point, memory))

    @property
    def _baseline(self) -> Point:
        return self._bursts.baseline

    @property
    def _rounds(self) -> Rounds:
        return self._bursts.rounds(CONFIRM)

    def _disagreement(self, point: Point) -> Numerics | None:
        """The verdict on a point that trains something else; None if nothing speaks against the point so far."""
        verdict = self.verdict(point)
        return verdict if verdict is not None and verdict.outcome == "disagrees" else None

    def confirmed(self) -> list[Confirmed]:
        """All finalists confirmed so far, fastest first. An uninterrupted run limits what its point may claim."""
        return [replace(entry, speedup=self._checked(entry)) for entry in self._ranked()]

    def _ranked(self) -> list[Confirmed]:
        return rank(self._baseline, self._rounds, self._failed())

    def _checked(self, entry: Confirmed) -> Speedup:
        """A finalist's speed-up, checked by its uninterrupted run and the baseline's."""
        runs = self._long_runs(entry.point)
        if runs is None:
            return entry.speedup
        return self._rounds.checked(entry.speedup, self._baseline, entry.point, runs, among=entry.among)

    def _long_runs(self, point: Point) -> tuple[Measurement, Measurement] | None:
        """The last uninterrupted runs of the baseline and a point, one right after the other; None without both."""
        rounds = reversed(self._bursts.rounds(UNINTERRUPTED).measured)
        return next(
            ((runs[self._baseline], runs[point]) for runs in rounds if {self._baseline, point} <= runs.keys()), None
        )

    def ran_faster(self, entry: Confirmed) -> str | None:
        """A sentence if a gain comes from the GPU's clock, which confirms nothing; None if nothing shows that."""
        return self._rounds.ran_faster(self._baseline, entry.point, entry.speedup)

    def throttled(self, point: Point) -> str | None:
        """A sentence if the card held its clocks down in the rounds of a point; None if nothing shows that."""
        return self._rounds.throttled(self._baseline, point)

    def _fast_enough(self) -> list[Confirmed]:
        """Finalists whose rates in the rounds, relative to the baseline's, reach the required share of the fastest."""
        confirmed = self._ranked()
        if self._at_least is None:
            return confirmed
        by_rate = rank(self._baseline, Rounds(self._rounds.measured), self._failed())
        rates = {entry.point: entry.speedup.ratio for entry in by_rate}
        least = self._at_least * max([1.0, *rates.values()])
        return [entry for entry in confirmed if rates[entry.point] >= least]

    def _failed(self) -> dict[Point, Burst]:
        """A failure of each point that failed in a round while the baseline did not.

        A timeout at the budget's end does not count.
        """
        failed = [trial for trial in self._bursts.trials if trial.stage in PROVING and not trial.burst.ok]
        lost = {(trial.stage, trial.round) for trial in failed if trial.burst.point == self._baseline}
        cut_off = self._bursts.cut_off
        return {
            trial.burst.point: trial.burst
            for trial in failed
            if (played := (trial.stage, trial.round)) not in lost
            and (trial.burst.outcome is not Outcome.TIMEOUT or played not in cut_off)
        }

    def why_out(self, point: Point) -> str | None:
        """Why a point cannot be the answer, whatever its speed; None if nothing speaks against it."""
        if (verdict := self._disagreement(point)) is not None:
            return f"it does not train what the baseline trains: {verdict.reason}"
        failed = self._failed().get(point)
        return f"it ended as {failed.outcome.value} when it was measured again: {failed.reason}" if failed else None

    def sides(self, point: Point) -> tuple[Measurement, Measurement] | None:
        """The baseline's measurement and a point's, over the rounds that hold both; None if no round does.

        Their blocks are pairs, in order.
        """
        both = self._rounds.of_both(self._baseline, point)
        if not both:
            return None
        return pool([held[self._baseline] for held in both]), pool([held[point] for held in both])

    @property
    def checks(self) -> bool:
        """Whether numerics are checked."""
        return self._numerics is not None

    def verdict(self, point: Point) -> Numerics | None:
        """Whether a point trains what eager fp32 trains; None if not checked yet."""
        return self._numerics.known(point) if self._numerics is not None else None

    def race(self) -> None:
        """Measures the search's best point and the baseline again, interleaved; then points that may beat it.

        Each first trains once without interruption, if time is left for that and for enough rounds to decide; the
        rounds take the rest, whatever they show. The first finalist may have been lucky: points that seemed slower
        than its lucky figure, but not slower than its true one, race against it too, while there is time. The search
        has already compared its candidates block by block in one process, with less noise than a few rounds of fresh
        processes. So all the time goes to the proof of one point.
        """
        self._bursts.show_stage(CONFIRM)
        points = [self._baseline, self._bursts.incumbent or self._baseline]
        if not self._rounds.measured and not self._affords_next(points):
            return  # nothing can be confirmed, so that checking numerics is worth nothing
        self._race()
        self._check_answer()

    def _race(self) -> None:
        raced: set[Point] = set()
        while finalists := self._finalists(raced):
            fastest = self._fast_enough()[:1]
            leaders = [entry.point for entry in fastest if entry.point in raced and entry.speedup.confirmed]
            points = [*leaders, *finalists]
            rounds = [self._baseline, *points] * (MIN_DECIDED_ROUNDS if leaders or not raced else FEWEST_ROUNDS)
            if raced and not self._affords(rounds):
                return
            if not raced:
                self._run_uninterrupted(finalists[0], self._bursts.costs.round_seconds(rounds))
            raced |= {*finalists}
            failed = self._failed()
            if standing := [point for point in points if point not in failed]:
                self._play(standing, self._rival(raced))

    def _searched(self) -> tuple[list[Standing], float]:
        """What the search thinks of all points, best first, and the baseline's score there; 0 if it has none."""
        searched = self._bursts.log.standings()
        return searched, next((standing.score for standing in searched if standing.point == self._baseline), 0.0)

    def _rival(self, raced: Collection[Point]) -> float:
        """What the best of the points that have not raced seems to reach at least, over the baseline; 0 if none."""
        searched, before = self._searched()
        others = [one for one in searched if one.point not in {self._baseline, *raced}]
        sound = [one for one in others if one.point not in self._unchecked and self._disagreement(one.point) is None]
        least = [one.score * math.exp(-one.error) for one in sound]
        return max(least, default=0.0) / before if before else 0.0

    def _check_answer(self) -> None:
        """Runs the answer uninterrupted if it has not been, while there is time; if that refutes it, runs the next."""
        ran: set[Point] = set()
        while (answer := self.answer()) not in {self._baseline, *ran}:
            ran.add(answer)
            self._run_uninterrupted(answer)

    def _run_uninterrupted(self, point: Point, kept_seconds: float = 0.0) -> None:
        """Trains the baseline and a point once each without interruption, if that leaves `kept_seconds`."""
        budget, costs = self._bursts.budget, self._bursts.costs
        share = max(UNINTERRUPTED_LEAST_SECONDS, UNINTERRUPTED_SHARE * budget.seconds)
        each = min(UNINTERRUPTED_MOST_SECONDS, share)
        points = [self._baseline, point]
        starts = map(costs, points)
        seconds = 2 * UNINTERRUPTED_OVERRUN * each + sum(cost.start_seconds + cost.compile_seconds for cost in starts)
        available = min(UNINTERRUPTED_MOST_SHARE * budget.seconds, budget.confirming_seconds - kept_seconds)
        if self._long_runs(point) is None and seconds <= available:
            self._bursts.uninterrupted(points, self._next_round(UNINTERRUPTED), each)

    def _play(self, points: Sequence[Point], rival: float) -> None:
        """Plays rounds of these points and the baseline; earlier rounds that hold all of them count.

        Args:
            points: The finalists.
            rival: What a point that has not raced seems to reach, over the baseline.
        """
        together = {self._baseline, *points}
        earlier = [measured for measured in self._rounds.measured if together <= measured.keys()]
        first = self._next_round(CONFIRM) - len(earlier)

        def play(points: Sequence[Point], number: int) -> list[Burst]:
            return self._bursts.in_turn(points, first + number, CONFIRM, f"round {first + number + 1}")

        before = Rounds(earlier, self._rounds.objective)
        confirm(self._baseline, points, play, before, affords=self._affords_next, rival=rival)

    def _best_round_seconds(self, point: Point) -> float | None:
        """How long the next round of a point times each side at best, by the rounds so far; None if not known."""
        sides = (trial.burst for trial in reversed(self._bursts.trials) if trial.stage == CONFIRM and trial.burst.ok)
        last = next((burst for burst in sides if burst.point == point), None)
        if last is None:
            return None
        return self._rounds.best_seconds(self._baseline, point, self._bursts.costs.start_seconds(last))

    def _next_round(self, stage: str) -> int:
        """The number of a stage's next round."""
        numbers = (trial.round for trial in self._bursts.trials if trial.stage == stage)
        return max((number for number in numbers if number is not None), default=-1) + 1

    def ablation(self) -> tuple[AblationRow, ...]:
        """What each changed knob is worth, as far as the search knows."""
        answer = self.answer()
        speedup = next((entry.speedup for entry in self.confirmed() if entry.point == answer), None)
        return ablation_rows(answer, self._baseline, self._bursts.trials, self._bursts.log.design, speedup)

    def _finalists(self, raced: Collection[Point]) -> list[Point]:
        """The next points to race: the best that may beat those that have; with a floor on the rate, also the fastest.

        The floor is a share of the fastest rate, which only rounds show.
        """
        fastest, too_slow = self._by_rate()
        best = self._best(raced, too_slow)
        return list(dict.fromkeys(point for point in (best, fastest) if point is not None and point not in raced))

    def _best(self, raced: Collection[Point], too_slow: Collection[Point]) -> Point | None:
        """The next finalist: the cheapest sound point among those as good as the best that has not raced."""
        searched, before = self._searched()
        ratios = [entry.speedup.ratio for entry in self._fast_enough() if entry.point in raced]
        reached = before * max([1.0, *ratios])
        out = {self._baseline, *raced, *too_slow}
        faster = [standing for standing in searched if standing.point not in out and standing.score >= reached]
        as_good = [standing.point for standing in faster if standing.score >= TIE * faster[0].score]
        memory = {point: self._memory(point, None) for point in as_good}
        others = [standing.point for standing in faster[len(as_good) :]]
        for point in [*sorted(as_good, key=lambda point: self._expense(point, memory)), *others]:
            unknown = self.verdict(point) is None
            if raced and unknown and 2 * self._checking_seconds > CHECKING_SHARE * self._bursts.budget.seconds:
                continue  # checking a further finalist is not worth more of the confirmation's time
            if self.agrees(point):  # otherwise the next point takes its place
                return point
        return None

    def _expense(self, point: Point, memory: Mapping[Point, int]) -> tuple[bool | int, ...]:
        """What a point costs besides time, the most expensive first: compiling, workers, memory, changes."""
        much = memory[point] > NOTABLE_MEMORY * min(memory.values())
        return point.config.is_compiled, point.config.num_workers, much, len(reverted(point, self._baseline))

    def _by_rate(self) -> tuple[Point | None, set[Point]]:
        """The fastest sound point, and those far too slow, if the answer must reach a share of the fastest rate.

        The rates are those of single bursts; the race decides about smaller differences.
        """
        if self._at_least is None:
            return None, set()
        rates = {
            trial.burst.point: trial.burst.rate
            for trial in self._bursts.trials
            if trial.round is None and trial.burst.ok and trial.burst.rate
        }
        by_rate = sorted(rates, key=lambda point: rates[point], reverse=True)
        fastest = next((point for point in by_rate if point == self._baseline or self.agrees(point)), self._baseline)
        least = self._at_least * (1 - APART_ERROR) * rates.get(fastest, 0.0)
        slow = {point for point, rate in rates.items() if rate < least}
        return fastest if fastest != self._baseline else None, slow

    def agrees(self, point: Point) -> bool:
        """Whether nothing speaks against a point's numerics; checks them, if needed.

        A point that cannot be checked in time must not be the answer, so it is worth no rounds.
        """
        if self._numerics is None:
            return True
        verdict = self.check(point) if point not in self._unchecked else None
        if verdict is not None:
            return verdict.outcome != "disagrees"
        if not self._unchecked:
            changes = point.changes_text(self._baseline, ", ")
            self._note(f"left out, since there is no time to check whether it trains the same: {changes}; {LONGER}")
        self._unchecked.add(point)
        return False

    def check(self, point: Point) -> Numerics | None:
        """The verdict on a point; if there is none yet, a short training gives it. None if there is no time for one."""
        if self._numerics is None:
            return None
        if (verdict := self._numerics.known(point)) is not None:
            return verdict
        costs, budget = self._bursts.costs, self._bursts.budget
        began = budget.now()
        rounds = costs.round_seconds([self._baseline, point] * FEWEST_ROUNDS)
        steps = costs.numerics_steps(point, budget, rounds)
        deadline = costs.numerics_deadline(point, steps, budget.remaining)
        verdict = self._numerics.check(point, steps, deadline)
        self._checking_seconds += budget.now() - began
        return verdict

    def _affords(self, points: Sequence[Point]) -> bool:
        """Whether there is time for these bursts and the profiles that follow."""
        return self._bursts.costs.round_seconds(points) <= self._bursts.budget.confirming_seconds

    def _affords_next(self, points: Sequence[Point]) -> bool:
        """Whether there is time for another round; sets it to its best length, or to the usual one if only that fits.

        Until enough are played to decide, nothing else is worth as much. A round keeps time for the end of each side.
        Without it, a round that is expected to take as long as the last one would be cut off before a block counts.
        """
        together = sum({*points} <= measured.keys() for measured in self._rounds.measured)

        def fits() -> bool:
            if together >= MIN_DECIDED_ROUNDS:
                return self._affords(points)
            ends = END_SECONDS * len(points) if together else 0.0
            return self._bursts.costs.round_seconds(points) + ends <= self._bursts.budget.remaining

        best = self._best_round_seconds(points[1])
        if best is not None:
            self._bursts.time_rounds(CONFIRM, best)
            if fits():
                return True
        self._bursts.time_rounds(CONFIRM, None)
        return fits()

    def _memory(self, point: Point, stage: str | None) -> int:
        """The memory that a point took, in one stage or in all. Rounds are apart, because their sides share pages."""
        measured = self._bursts.log.measurement(point, stage)
        return (measured.device_memory_bytes if measured is not None else None) or 0
