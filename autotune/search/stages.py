"""What to try next before the sampler takes over: the baseline, the hardware's suggestions, then one knob at a time.

The next proposal follows from the trials so far, and from ceilings that are measured again when they are needed, so
that a resumed run goes on where it was.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.knobs import KNOBS, Scalar, Space, going_with
from autotune.measuring import Point
from autotune.search.ceilings import unlikely_to_gain, with_workers, workers_needed
from autotune.search.trials import Trial, fastest, mean_score, ranked_points

BASELINE, WARM, SUGGESTED, FED = "baseline", "warm start", "suggestions", "fed better"
WORKERS, LARGEST, RACE = "fewest workers", "largest batch", "once more"
SINGLE, SAMPLER = "one knob at a time", "sampler"
ANCHOR, CONFIRM, ABLATION = "anchor", "confirm", "ablation"
NOTABLY_LARGER = 1.25
"""The largest batch that memory allows is worth a burst when it is so many times the fastest so far.
Chosen, not measured: the batches that a space offers lie apart by two."""
MANY_COUNTS = 4
"""With fewer numbers of workers to choose from, whole bursts of each cost no more than bursts of the loader alone:
by counting bursts."""
EARLY_RACES = 2
"""Near-equals run again at once so often; later ones when all else has been tried. Chosen on
replays of recorded surfaces (benchmarks/replay.py), not measured alone."""
CLOSE = 0.95
"""Two points are near-equals when the slower one comes to this share of the faster: processes that train the same
config were measured to differ by 3 to 6 %."""
LEAST_COMPUTING = 0.05
"""Of the time, at least, that is taken for computing: chosen, it only keeps a bound finite."""
WORTH_FEEDING = 1.15
"""More workers are worth a burst where training could become so many times as fast as the fastest so far.
Chosen: well above the noise of one burst, since the bound is an optimistic one."""
GAIN_RATIO = 0.75
"""Each knob is expected to gain so many times what the one before it does: the space lists them by expected effect.
Chosen, not measured."""
MAX_CHANGES = 2
"""A value's test counts where the point differed in so many knobs at most from the fastest: knobs are coupled.
Chosen on replays of recorded surfaces, not measured alone."""
MAX_TESTS_PER_VALUE = 2
"""How often one value of a knob is tried near the incumbent, or clearly loses, before the sampler takes over. Chosen:
once may be bad luck."""


@dataclass(frozen=True)
class Proposal:
    """A point to run, and why.

    Attributes:
        point: What to run.
        stage: The part of the search that asks for it.
        reason: Why, in one sentence.
    """

    point: Point
    stage: str
    reason: str


class Stages:
    """Proposes points in order of what they are expected to be worth.

    Args:
        space: What is searched.
        baseline: What the user trains with today.
        refuse: Why a point must not run, or None.
        first: What comes right after the baseline.
        largest_batch: The largest batch that memory allows with a point's other knobs, or None when it is not known.
        fewest_workers: Of some counts, the fewest that feed a point's computing, and why; None when it is not known.
        seconds_of: What a burst of a point is expected to cost, starting and compiling included.
        seconds_left: What there is for bursts.
    """

    def __init__(
        self,
        space: Space,
        baseline: Point,
        refuse: Callable[[Point], str | None],
        *,
        first: Sequence[Proposal] = (),
        largest_batch: Callable[[Point], int | None] = lambda _: None,
        fewest_workers: Callable[[Point, Sequence[int]], tuple[int, str] | None] = lambda *_: None,
        seconds_of: Callable[[Point], float] = lambda _: 1.0,
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._space = space
        self._baseline = baseline
        self._refuse = refuse
        self._first = first
        self._largest_batch = largest_batch
        self._fewest_workers = fewest_workers
        self._seconds_of = seconds_of
        self._seconds_left = seconds_left

    def next(self, trials: Sequence[Trial]) -> Proposal | None:
        """The next proposal; None when this method has nothing more to try."""
        if all(trial.burst.point != self._baseline for trial in trials):
            return Proposal(self._baseline, BASELINE, "what you train with today")
        guesses = (self._first, self._suggestions(), self._workers(trials), self._fed_better(trials))
        if (guess := self._new(itertools.chain(*guesses), trials)) is not None:
            return guess
        if (pressing := self._new(self._single_changes(trials, pressing=True), trials)) is not None:
            return pressing
        raced = sum(trial.stage == RACE for trial in trials)
        if raced < EARLY_RACES and (again := self._race(trials)) is not None:
            return again
        steps = (self._larger_batch(trials), self._single_changes(trials))
        return self._new(itertools.chain(*steps), trials) or self._race(trials)

    def _new(self, ideas: Iterable[Proposal], trials: Sequence[Trial]) -> Proposal | None:
        """The first idea that was not run yet and may be."""
        tried = {trial.burst.point for trial in trials}
        return next((idea for idea in ideas if idea.point not in tried and self._refuse(idea.point) is None), None)

    def _race(self, trials: Sequence[Trial]) -> Proposal | None:
        """The fastest point once more when another came close: the best of several noisy figures is flattered.

        What follows is built on it, so that a wrong choice would cost more bursts than this one.
        """
        top = ranked_points(trial for trial in trials if trial.round is None)[:2]
        if len(top) < 2 or mean_score(top[1]) < CLOSE * mean_score(top[0]):
            return None
        once = [alike[0].burst.point for alike in top if len(alike) == 1 and alike[0].burst.point != self._baseline]
        return Proposal(once[0], RACE, "two came close, and the faster may have been lucky") if once else None

    def _suggestions(self) -> Iterator[Proposal]:
        """The hardware's own guesses, best first."""
        for config in self._space.suggested():
            point = Point(config=config, parameters=self._baseline.parameters)
            yield Proposal(point, SUGGESTED, "what this hardware suggests, all at once")

    def _workers(self, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """Where training waits and many numbers of workers are possible: the one that the loader alone points to."""
        incumbent = fastest(trials)
        if incumbent is None or incumbent.burst.measurement is None or "num_workers" not in self._space.choices:
            return
        counts = [int(count or 0) for count in self._space.choices["num_workers"].values]
        waits = not unlikely_to_gain("num_workers", incumbent.burst.measurement)
        if len(counts) >= MANY_COUNTS and waits and not any(trial.stage == WORKERS for trial in trials):
            found = self._fewest_workers(incumbent.burst.point, counts)
            if found is not None:
                yield Proposal(self._change(incumbent.burst.point, "num_workers", found[0]), WORKERS, found[1])

    def _fed_better(self, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """The point that would be the fastest if it did not wait for data, with the workers that it lacks.

        It need not be the fastest so far: one change alone, of the computing or of the loader, may gain nothing.
        """
        best = fastest(trials)
        if best is None or "num_workers" not in self._space.choices:
            return
        waiting = max((t for t in trials if t.burst.ok), key=unhindered_score)
        measured, point = waiting.burst.measurement, waiting.burst.point
        if measured is None or unhindered_score(waiting) < WORTH_FEEDING * (best.score or 0.0):
            return
        waits = measured.data_wait_fraction
        counts = sorted(int(count or 0) for count in self._space.choices["num_workers"].values)
        more = [count for count in counts if count > point.config.num_workers]
        if more:
            wanted = workers_needed(point.config.num_workers, waits)
            count = next((count for count in more if count >= wanted), more[-1])
            reason = f"it waited for data {waits:.0%} of the time, and computes faster than the fastest so far"
            yield Proposal(self._share_cores(self._change(point, "num_workers", count)), FED, reason)

    def _share_cores(self, point: Point) -> Point:
        """Where training computes on the CPU, its threads leave the workers their cores."""
        choices = self._space.choices.get("num_threads")
        if choices is None or point.config.num_threads is not None:
            return point
        threads = sorted(int(value) for value in choices.values if value is not None)
        left = [value for value in threads if value <= threads[-1] - point.config.num_workers]
        return self._change(point, "num_threads", (left or threads)[-1 if left else 0])

    def _larger_batch(self, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """Where the effective batch is free: the largest batch that memory allows, at the fastest point so far."""
        incumbent = fastest(trials)
        if incumbent is None or self._space.effective_batch is not None or "batch_size" not in self._space.choices:
            return
        point = incumbent.burst.point
        largest = self._largest_batch(point)
        if largest is None:
            return
        highest = max(int(value or 1) for value in self._space.choices["batch_size"].values)
        batch = min(largest - largest % 8 if largest >= 8 else largest, highest)
        if batch >= NOTABLY_LARGER * point.config.batch_size:
            reason = f"memory allows a batch of {largest}, by what smaller ones took"
            yield Proposal(self._change(point, "batch_size", batch), LARGEST, reason)

    def _single_changes(self, trials: Sequence[Trial], *, pressing: bool = False) -> list[Proposal]:
        """The fastest point with one knob changed; values that were seen least come first, then most gain per second.

        Knobs of the part that does not limit come last. On a scale only the neighbours are tried: where one is better,
        the fastest point moves, and its own next neighbour follows.

        Args:
            trials: Those so far.
            pressing: Whether only what was not tried yet is wanted, and would soon take longer than there is. What is
                expensive, as compiling is, waits until the fastest point is a good one, but not for ever.
        """
        incumbent = fastest(trials)
        if incumbent is None:
            return []
        point, measured = incumbent.burst.point, incumbent.burst.measurement
        seen = [trial.burst.point for trial in trials]
        lost = self._lost(trials)
        order = {name: position for position, name in enumerate((*self._space.choices, *self._space.parameters))}
        ranked: list[tuple[bool, int, float, Proposal]] = []
        soon = self._seconds_left() - 2 * self._seconds_of(point)  # the next burst, and an anchor
        for name, value in self._changes(point):
            alike = sum(other.values.get(name) == value and _alike(other, point) for other in seen)
            tests = max(alike, lost[name, value])
            if tests >= (1 if pressing else MAX_TESTS_PER_VALUE):
                continue
            changed = self._change(point, name, value)
            seconds = self._seconds_of(changed)
            if not pressing or seconds > soon:
                late = measured is not None and unlikely_to_gain(name, measured)
                per_second = GAIN_RATIO ** order[name] / seconds
                reason = f"{name}={value} at the fastest so far, where it is {point.values.get(name)}"
                ranked.append((late, tests, -per_second, Proposal(changed, SINGLE, reason)))
        return [proposal for *_, proposal in sorted(ranked, key=lambda entry: entry[:3])]

    def _lost(self, trials: Sequence[Trial]) -> Counter[tuple[str, Scalar]]:
        """How often each value of a knob, put in alone, was clearly slower than the fastest point at that time."""
        lost: Counter[tuple[str, Scalar]] = Counter()
        names = (*self._space.choices, *self._space.parameters)
        best: Trial | None = None
        for trial in (trial for trial in trials if trial.round is None):
            if best is not None and trial.stage == SINGLE and (trial.score or 0.0) < CLOSE * (best.score or 0.0):
                point, before = trial.burst.point, best.burst.point
                changed = {*names} & point.changes_from(before).keys()
                changed.difference_update(*map(going_with, tuple(changed)))
                if len(changed) == 1:
                    (name,) = changed
                    lost[name, point.values.get(name)] += 1
            best = max(best or trial, trial, key=lambda trial: trial.score or 0.0)
        return lost

    def _changes(self, point: Point) -> Iterator[tuple[str, Scalar]]:
        for knob, choices in self._space.choices.items():
            current = getattr(point.config, knob)
            yield from ((knob, value) for value in _neighbours(current, choices.values) if value != current)
        for name, values in self._space.parameters.items():
            yield from ((name, value) for value in values if value != point.parameters.get(name))

    def _change(self, point: Point, name: str, value: Scalar) -> Point:
        if name in self._space.parameters:
            return Point(config=point.config, parameters={**point.parameters, name: value})
        config = point.config
        if name == "num_workers" and "persistent_workers" in self._space.choices:
            config = with_workers(point, int(value or 0)).config
        return Point(config=self._space.changed(config, {name: value}), parameters=point.parameters)


def unhindered_score(trial: Trial) -> float:
    """The score, had training not waited for data: an upper bound of what a better loader can bring."""
    waits = trial.burst.measurement.data_wait_fraction if trial.burst.measurement is not None else 0.0
    return (trial.score or 0.0) / max(1 - waits, LEAST_COMPUTING)


def _alike(point: Point, other: Point) -> bool:
    """Whether what a value did at one point says something about the other: they differ in few knobs."""
    changed = [knob for knob in point.config.changes_from(other.config) if KNOBS[knob].candidates is not None]
    return len(changed) <= MAX_CHANGES


def _neighbours(current: Scalar, values: Sequence[Scalar]) -> Sequence[Scalar]:
    """On a scale of numbers the next value up and down; all values otherwise."""
    scale = sorted(value for value in values if isinstance(value, int) and not isinstance(value, bool))
    if len(scale) != len(values) or not isinstance(current, int):
        return values
    above = [value for value in scale if value > current][:1]
    below = [value for value in scale if value < current][-1:]
    return (*above, *below)
