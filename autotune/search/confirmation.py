"""The end of a search: the finalists against the baseline in interleaved rounds.

Only what is measured here becomes a headline: the best of the many figures that the search saw is flattered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from autotune.measuring import (
    APART_ERROR,
    Burst,
    Measurement,
    Numerics,
    NumericsGuard,
    Outcome,
    Point,
    Speedup,
    best_round_seconds,
    checked_by,
    comparable,
    pool,
    ran_faster,
)
from autotune.results.result import AblationRow
from autotune.search.ablation import ablation_rows, reverted
from autotune.search.bursts import Bursts
from autotune.search.proposal import CONFIRM, UNINTERRUPTED
from autotune.search.rounds import MIN_DECIDED_ROUNDS, TIE, Confirmed, as_good_as_the_fastest, confirm, rank
from autotune.search.standing import resource_cost

CHECKING_SHARE = 0.08
"""The share of the budget for numerics checks of further finalists; each is expected to take as long as all before it.
Not tuned."""
NOTABLE_MEMORY = 1.25
"""Of equals, one that takes this many times the memory of the most frugal is more expensive. Not tuned."""
UNINTERRUPTED_SHARE, UNINTERRUPTED_LEAST_SECONDS, UNINTERRUPTED_MOST_SECONDS = 0.05, 5.0, 20.0
"""The share of the budget for the uninterrupted run of each of two configs, and its least and most seconds, warming up
included. The turns of a small CNN cost the faster side up to 4 %, which such a run shows (`bursts.duet`). Not tuned."""
UNINTERRUPTED_MOST_SHARE = 0.2
"""The largest share of the budget for both runs with their starts; in a smaller budget, rounds are worth more."""
PROVING = (CONFIRM, UNINTERRUPTED)
"""Stages whose failures are the finalist's own."""


class Confirmation:
    """Races the finalists, and answers from what the race has shown so far: also after an interruption.

    Args:
        baseline: What the user trains with today.
        bursts: Runs them, and knows all that ran.
        numerics: Checks finalists against eager fp32; None trusts them, as where recordings are replayed.
        at_least: The share of the fastest config's rate that the answer must reach; None: any.
    """

    def __init__(
        self, baseline: Point, bursts: Bursts, *, numerics: NumericsGuard | None, at_least: float | None = None
    ) -> None:
        self._baseline = baseline
        self._bursts = bursts
        self._numerics, self._checking_seconds = numerics, 0.0
        self._objective = bursts.log.objective
        self._at_least = at_least

    def answer(self) -> Point:
        """The point to train with: only a confirmed gain displaces the baseline, and of equals the cheapest wins.

        Of those that cost the same the fastest does, which comes first. Where the baseline never trained, the best that
        does is the answer, and nothing is confirmed.
        """
        if not self.baseline_trains:
            return next((one for one in self._trained() if self._disagreement(one) is None), self._baseline)
        sound = [one for one in self._fast_enough() if self.ran_faster(one) is None and self._checked(one).confirmed]
        equals = as_good_as_the_fastest(sound, self._bursts.rounds(CONFIRM), self._objective)
        if not equals:
            return self._baseline
        memory = {point: self._memory(point, CONFIRM) for point in equals}
        return min(equals, key=lambda point: self._expense(point, memory))

    @property
    def baseline_trains(self) -> bool:
        """Whether a burst of the baseline has ended well: else there is nothing to compare with."""
        return self._bursts.log.measurement(self._baseline) is not None

    def _trained(self) -> Iterator[Point]:
        """What trained in the search, best first."""
        return (standing.point for standing in self._bursts.log.standings())

    def _disagreement(self, point: Point) -> Numerics | None:
        """The verdict on a point that trains something else; None where nothing speaks against it so far."""
        verdict = self.verdict(point)
        return verdict if verdict is not None and verdict.outcome == "disagrees" else None

    def confirmed(self) -> list[Confirmed]:
        """What has been confirmed so far, fastest in the rounds first; one with an uninterrupted run is held to it."""
        return [Confirmed(one.point, self._checked(one)) for one in self._ranked()]

    def _ranked(self) -> list[Confirmed]:
        return rank(self._baseline, self._bursts.rounds(CONFIRM), self._failed(), self._objective)

    def _checked(self, one: Confirmed) -> Speedup:
        """A finalist's speed-up beside its uninterrupted run and the baseline's."""
        runs = self._long_runs(one.point)
        if runs is None:
            return one.speedup
        return checked_by(one.speedup, self._bursts.rounds(CONFIRM), self._baseline, one.point, runs, self._objective)

    def _long_runs(self, point: Point) -> tuple[Measurement, Measurement] | None:
        """The last uninterrupted runs of the baseline and a point, one right after the other; None without both."""
        rounds = reversed(self._bursts.rounds(UNINTERRUPTED))
        return next(
            ((one[self._baseline], one[point]) for one in rounds if {self._baseline, point} <= one.keys()), None
        )

    def ran_faster(self, one: Confirmed) -> str | None:
        """That a gain is one of the GPU's clock, which confirms nothing; None where nothing says so."""
        return ran_faster(self._bursts.rounds(CONFIRM), self._baseline, one.point, one.speedup, self._objective)

    def _fast_enough(self) -> list[Confirmed]:
        """Those that reach what the answer must, by their rates in the same rounds, the baseline's being one."""
        confirmed = self._ranked()
        if self._at_least is None:
            return confirmed
        rates = {
            one.point: one.speedup.ratio for one in rank(self._baseline, self._bursts.rounds(CONFIRM), self._failed())
        }
        least = self._at_least * max([1.0, *rates.values()])
        return [one for one in confirmed if rates[one.point] >= least]

    def _failed(self) -> set[Point]:
        """Points that failed in a round by themselves: not together with the baseline, nor by the end of the budget."""
        failed = [trial for trial in self._bursts.trials if trial.stage in PROVING and not trial.burst.ok]
        lost = {(trial.stage, trial.round) for trial in failed if trial.burst.point == self._baseline}
        cut_off = self._bursts.cut_off
        return {
            trial.burst.point
            for trial in failed
            if (played := (trial.stage, trial.round)) not in lost
            and (trial.burst.outcome is not Outcome.TIMEOUT or played not in cut_off)
        }

    def why_out(self, point: Point) -> str | None:
        """Why a point cannot be the answer, whatever its speed; None where nothing speaks against it."""
        if (verdict := self._disagreement(point)) is not None:
            return f"it does not train what the baseline trains: {verdict.reason}"
        if point not in self._failed():
            return None
        played = [trial.burst for trial in self._bursts.trials if trial.stage in PROVING and trial.burst.point == point]
        failed = next(burst for burst in played if not burst.ok)
        return f"it ended as {failed.outcome.value} when it was measured again: {failed.reason}"

    def sides(self, point: Point) -> tuple[Measurement, Measurement] | None:
        """The baseline's measurement and a point's, over the rounds that hold both: their blocks are pairs, in order.

        None where no round does.
        """
        both = comparable(self._bursts.rounds(CONFIRM), self._baseline, point)
        if not both:
            return None
        return pool([held[self._baseline] for held in both]), pool([held[point] for held in both])

    @property
    def checks(self) -> bool:
        """Whether numerics are looked at."""
        return self._numerics is not None

    def verdict(self, point: Point) -> Numerics | None:
        """Whether a point trains what eager fp32 trains, if that is known."""
        return self._numerics.known(point) if self._numerics is not None else None

    def race(self) -> None:
        """Measures what the search holds for the best and the baseline again, interleaved; then what may beat it.

        Each trains once without interruption first, where there is time for that and for rounds enough to decide; the
        rounds take all the rest, whatever they show. The first finalist may have been lucky: what seemed slower than
        its lucky figure, but not than its true one, races against it too, while there is time. The search has compared
        its candidates in one process, block by block, and surer than a few rounds of fresh ones could: so all time goes
        to the proof of one.
        """
        self._bursts.show_stage(CONFIRM)
        if not self.baseline_trains:
            next(filter(self.agrees, self._trained()), None)  # the first that is sound is the answer
            return
        self._race()
        self._check_answer()

    def _race(self) -> None:
        raced: set[Point] = set()
        while finalists := self._finalists(raced):
            leaders = [one.point for one in self._fast_enough()[:1] if one.point in raced and one.speedup.ratio > 1]
            points = [*leaders, *finalists]
            rounds = [self._baseline, *points] * MIN_DECIDED_ROUNDS
            if raced and not self._affords(rounds):
                return
            if not raced:
                self._run_uninterrupted(finalists[0], self._bursts.costs.round_seconds(rounds))
            raced |= {*finalists}
            failed = self._failed()
            if standing := [point for point in points if point not in failed]:
                self._play(standing)

    def _check_answer(self) -> None:
        """Runs an answer uninterrupted that has not been, while there is time; if that refutes it, the next one."""
        ran: set[Point] = set()
        while (answer := self.answer()) not in {self._baseline, *ran}:
            ran.add(answer)
            self._run_uninterrupted(answer)

    def _run_uninterrupted(self, point: Point, kept_seconds: float = 0.0) -> None:
        """Trains the baseline and a point once each without interruption, where time is left for what is kept."""
        budget, costs = self._bursts.budget, self._bursts.costs
        wanted = max(UNINTERRUPTED_LEAST_SECONDS, UNINTERRUPTED_SHARE * budget.seconds)
        each = min(UNINTERRUPTED_MOST_SECONDS, wanted)
        points = [self._baseline, point]
        seconds = 2 * each + sum(costs(one.config).start_seconds for one in points)
        left = min(UNINTERRUPTED_MOST_SHARE * budget.seconds, budget.confirming_seconds - kept_seconds)
        if self._long_runs(point) is None and seconds <= left:
            self._bursts.uninterrupted(points, self._next_round(UNINTERRUPTED), each)

    def _play(self, points: Sequence[Point]) -> None:
        """Rounds of these points and the baseline; those that all have taken part in count."""
        together = {self._baseline, *points}
        known = [measured for measured in self._bursts.rounds(CONFIRM) if together <= measured.keys()]
        first = self._next_round(CONFIRM) - len(known)

        def play(points: Sequence[Point], number: int) -> list[Burst]:
            told = f"round {first + number + 1}"
            self._time_rounds(points[1])
            return self._bursts.in_turn(points, first + number, CONFIRM, lambda _: told)

        confirm(self._baseline, points, play, affords=self._affords_next, known=known, objective=self._objective)

    def _time_rounds(self, point: Point) -> None:
        """Makes the next rounds as long as those so far say is best."""
        sides = (trial.burst for trial in reversed(self._bursts.trials) if trial.stage == CONFIRM and trial.burst.ok)
        last = next((burst for burst in sides if burst.point == point), None)
        if last is None:
            return
        start, rounds = self._bursts.costs.start_seconds(last), self._bursts.rounds(CONFIRM)
        best = best_round_seconds(rounds, self._baseline, point, self._objective, start)
        if best is not None:
            self._bursts.time_rounds(CONFIRM, best)

    def _next_round(self, stage: str) -> int:
        """The number of a stage's next round."""
        numbers = (trial.round for trial in self._bursts.trials if trial.stage == stage)
        return max((number for number in numbers if number is not None), default=-1) + 1

    def ablation(self) -> tuple[AblationRow, ...]:
        """What each knob that was changed is worth, as far as the search knows."""
        answer = self.answer()
        speedup = next((one.speedup for one in self.confirmed() if one.point == answer), None)
        return ablation_rows(answer, self._baseline, self._bursts.trials, self._bursts.log.design, speedup)

    def _finalists(self, raced: Collection[Point]) -> list[Point]:
        """What is measured next: the best that has not been and may beat what has; with a floor, the fastest beside it.

        The rate that a floor is a share of is known from the rounds alone.
        """
        fastest, too_slow = self._by_rate()
        best = self._best(raced, too_slow)
        return list(dict.fromkeys(one for one in (best, fastest) if one is not None and one not in raced))

    def _best(self, raced: Collection[Point], too_slow: Collection[Point]) -> Point | None:
        """The next finalist: the cheapest sound point among those that are as good as the best not yet raced."""
        searched = self._bursts.log.standings()
        before = next((one.score for one in searched if one.point == self._baseline), 0.0)
        reached = before * max([1.0, *(one.speedup.ratio for one in self._fast_enough() if one.point in raced)])
        out = {self._baseline, *raced, *too_slow}
        faster = [one for one in searched if one.point not in out and one.score >= reached]
        as_good = [one.point for one in faster if one.score >= TIE * faster[0].score]
        memory = {point: self._memory(point, None) for point in as_good}
        others = [one.point for one in faster[len(as_good) :]]
        for point in [*sorted(as_good, key=lambda one: self._expense(one, memory)), *others]:
            unknown = self.verdict(point) is None
            if raced and unknown and 2 * self._checking_seconds > CHECKING_SHARE * self._bursts.budget.seconds:
                continue  # a further finalist is not worth more of the confirmation's time
            if self.agrees(point):  # else the next in line takes its place
                return point
        return None

    def _expense(self, point: Point, memory: Mapping[Point, int]) -> tuple[bool | int, ...]:
        """What a point costs besides time, beside others with their `memory` in bytes: most expensive first."""
        much = memory[point] > NOTABLE_MEMORY * min(memory.values())
        return *resource_cost(point.config), much, len(reverted(point, self._baseline))

    def _by_rate(self) -> tuple[Point | None, set[Point]]:
        """Where a share of the fastest rate must be kept: the fastest point that is sound, and those far too slow.

        The rates are those of single bursts: the race decides about smaller differences.
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
        """Whether nothing speaks against a point's numerics; it is checked if need be."""
        if self._numerics is None:
            return True
        if (verdict := self._numerics.known(point)) is None:
            costs, budget = self._bursts.costs, self._bursts.budget
            deadline = costs.deadline(point.config, self._bursts.plan, budget.remaining)
            began = budget.now()
            rounds = costs.round_seconds([self._baseline, point] * MIN_DECIDED_ROUNDS)
            steps = costs.numerics_steps(point.config, budget, rounds)
            verdict = self._numerics.check(point, steps, deadline)
            self._checking_seconds += budget.now() - began
        return verdict.outcome != "disagrees"

    def _affords(self, points: Sequence[Point]) -> bool:
        """Whether there is time for these bursts, and for profiles afterwards."""
        return self._bursts.costs.round_seconds(points) <= self._bursts.budget.confirming_seconds

    def _affords_next(self, points: Sequence[Point]) -> bool:
        """Whether there is time for another round; until there are enough to decide, nothing else is worth as much."""
        together = sum({*points} <= measured.keys() for measured in self._bursts.rounds(CONFIRM))
        if together < MIN_DECIDED_ROUNDS:
            return self._bursts.costs.round_seconds(points) <= self._bursts.budget.remaining
        return self._affords(points)

    def _memory(self, point: Point, stage: str | None) -> int:
        """What a point took, in a stage or in all: in rounds, where others share pages, by those alone."""
        measured = self._bursts.log.measurement(point, stage)
        return (measured.device_memory_bytes if measured is not None else None) or 0
