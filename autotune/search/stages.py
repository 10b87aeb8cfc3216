"""What to try next before the sampler takes over: the baseline, the hardware's suggestions, then one knob at a time.

The next proposal follows from the trials so far, so that a resumed run goes on where it was.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from autotune.knobs import KNOBS, Scalar, Space, buying_memory, going_with
from autotune.measuring import Point
from autotune.search.ceilings import unlikely_to_gain, with_workers, workers_needed
from autotune.search.standing import incumbent_of
from autotune.search.trials import Trial

BASELINE, FIT, WARM, SUGGESTED, LOADER_BOUND = (
    "baseline",
    "fitting into memory",
    "warm start",
    "suggestions",
    "loader-bound",
)
WORKERS, LARGEST = "fewest workers", "largest batch"
SINGLE, SAMPLER = "one knob at a time", "sampler"
HEADROOM = "headroom"
CONFIRM, ABLATION = "confirm", "ablation"
NOTABLY_LARGER = 1.25
"""The largest batch that memory allows is worth a burst from this many times the fastest one's. Chosen."""
MANY_COUNTS = 4
"""With fewer numbers of workers to choose from, whole bursts cost no more than bursts of the loader alone."""
LEAST_COMPUTING = 0.05
"""The least share of the time that counts as computing. Chosen: it only keeps a bound finite."""
WORTH_FEEDING = 1.15
"""More workers are worth a burst where training could become so many times as fast as the fastest so far. Chosen well
above one burst's noise, since the bound is optimistic."""
GAIN_RATIO = 0.75
"""Each knob is expected to gain this share of what the one before it does: a space lists them by effect. Chosen."""
MAX_CHANGES = 2
"""A value's test counts where the point differed from the fastest in so many knobs at most: knobs are coupled."""
MAX_TESTS_PER_VALUE = 2
"""How often a value is tried near the fastest point, or loses beyond doubt, before it is left: once may be bad luck, of
the process or of the knobs that it was tried with. Chosen on recorded surfaces (benchmarks/replay.py), as is the one
before."""


@dataclass(frozen=True)
class Proposal:
    """A point to run, the stage of the search that asks for it, and why, in one sentence."""

    point: Point
    stage: str
    reason: str


@dataclass(frozen=True)
class Stages:
    """Proposes points in order of what they are expected to be worth.

    Attributes:
        space: What is searched.
        baseline: What the user trains with today.
        refuse: Why a point must not run, or None.
        first: What comes right after the baseline.
        largest_batch: The largest batch that memory allows with a point's other knobs, or None when it is not known.
        fewest_workers: Of some counts, the fewest that feed a point's computing, and why; None when it is not known.
        seconds_of: What a burst of a point is expected to cost, starting and compiling included.
        seconds_left: What there is for bursts.
    """

    space: Space
    baseline: Point
    refuse: Callable[[Point], str | None]
    _: KW_ONLY
    first: Sequence[Proposal]
    largest_batch: Callable[[Point], int | None]
    fewest_workers: Callable[[Point, Sequence[int]], tuple[int, str] | None]
    seconds_of: Callable[[Point], float]
    seconds_left: Callable[[], float]

    def next(self, trials: Sequence[Trial]) -> Proposal | None:
        """The next proposal; None when this method has nothing more to try."""
        if all(trial.burst.point != self.baseline for trial in trials):
            return Proposal(self.baseline, BASELINE, "what you train with today")
        guesses = itertools.chain(self.first, self._suggestions())
        incumbent = incumbent_of(trials)
        if incumbent is None:
            return self._new(guesses, trials)
        pressing = itertools.chain(
            guesses,
            self._workers(incumbent, trials),
            self._loader_bound(incumbent, trials),
            self._single_changes(incumbent, trials, pressing=True),
        )
        if (proposal := self._new(pressing, trials)) is not None:
            return proposal
        steps = itertools.chain(self._larger_batch(incumbent.burst.point), self._single_changes(incumbent, trials))
        return self._new(steps, trials)

    def _new(self, ideas: Iterable[Proposal], trials: Sequence[Trial]) -> Proposal | None:
        """The first idea that was not run yet and may be."""
        tried = {trial.burst.point for trial in trials}
        return next((idea for idea in ideas if idea.point not in tried and self.refuse(idea.point) is None), None)

    def _suggestions(self) -> Iterator[Proposal]:
        """The hardware's own guesses, best first."""
        for config in self.space.suggested():
            point = Point(config=config, parameters=self.baseline.parameters)
            yield Proposal(point, SUGGESTED, "what this hardware suggests, all at once")

    def _numbers(self, knob: str) -> list[int]:
        """What may be chosen for a knob that counts something, in order; nothing where it is not searched."""
        choices = self.space.choices.get(knob)
        return sorted(int(value or 0) for value in choices.values) if choices is not None else []

    def _workers(self, incumbent: Trial, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """Where training waits and many numbers of workers are possible: the one that the loader alone points to."""
        point, counts = incumbent.burst.point, self._numbers("num_workers")
        if len(counts) < MANY_COUNTS or _late("num_workers", incumbent) or any(t.stage == WORKERS for t in trials):
            return
        if (found := self.fewest_workers(point, counts)) is not None:
            yield Proposal(self._change(point, "num_workers", found[0]), WORKERS, found[1])

    def _loader_bound(self, best: Trial, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """The point that would be the fastest if it did not wait for data, with the workers that it lacks.

        It need not be the fastest so far: one change alone, of the computing or of the loader, may gain nothing.
        """
        waiting = max((t for t in trials if t.burst.ok), key=_unhindered_score)
        measured, point = waiting.burst.measurement, waiting.burst.point
        more = [count for count in self._numbers("num_workers") if count > point.config.num_workers]
        if measured is None or not more or _unhindered_score(waiting) < WORTH_FEEDING * (best.score or 0.0):
            return
        waits = measured.data_wait_fraction
        wanted = workers_needed(point.config.num_workers, waits)
        count = next((count for count in more if count >= wanted), more[-1])
        reason = f"it waited for data {waits:.0%} of the time, and computes faster than the fastest so far"
        yield Proposal(self._share_cores(self._change(point, "num_workers", count)), LOADER_BOUND, reason)

    def _share_cores(self, point: Point) -> Point:
        """Where training computes on the CPU, its threads leave the workers their cores."""
        threads = [count for count in self._numbers("num_threads") if count]
        if not threads or point.config.num_threads is not None:
            return point
        left = [value for value in threads if value <= threads[-1] - point.config.num_workers]
        return self._change(point, "num_threads", (left or threads)[-1 if left else 0])

    def _larger_batch(self, point: Point) -> Iterator[Proposal]:
        """Where the effective batch is free: the largest batch that memory allows, at the fastest point so far.

        Where it is not the largest that is searched, one for which memory must be bought comes next.
        """
        offered = self._numbers("batch_size")
        if self.space.effective_batch is not None or not offered or (largest := self.largest_batch(point)) is None:
            return
        batch = min(largest - largest % 8 if largest >= 8 else largest, offered[-1])
        if batch >= NOTABLY_LARGER * point.config.batch_size:
            reason = f"memory allows a batch of {largest}, by what smaller ones took"
            yield Proposal(self._change(point, "batch_size", batch), LARGEST, reason)
        if batch < offered[-1]:
            yield from self._bought_memory(point, min(2 * batch, offered[-1]), f"memory allows no more than {largest}")

    def _bought_memory(self, point: Point, batch: int, why: str) -> Iterator[Proposal]:
        """A batch for which there is no memory, with knobs that buy some with time."""
        for knob in buying_memory():
            bought = self.space.choices[knob].values[-1] if knob in self.space.choices else None
            if bought is not None and getattr(point.config, knob) != bought:
                larger = self._change(self._change(point, knob, bought), "batch_size", batch)
                yield Proposal(larger, LARGEST, f"{why}, and {knob}={bought} may leave room for twice that")

    def _single_changes(
        self, incumbent: Trial, trials: Sequence[Trial], *, pressing: bool = False
    ) -> Iterator[Proposal]:
        """The fastest point with one knob changed; values that were seen least come first, then most gain per second.

        Knobs of the part that does not limit come last. On a scale only the neighbours are tried: where one is better,
        the fastest point moves, and its own next neighbour follows.

        Args:
            incumbent: The fastest so far.
            trials: All of them.
            pressing: Whether only what was not tried yet is wanted, and would soon take longer than there is. What is
                expensive, as compiling is, waits until the fastest point is a good one, but not for ever.
        """
        point = incumbent.burst.point
        seen = [trial.burst.point for trial in trials]
        lost = self._lost(trials)
        order = {name: position for position, name in enumerate((*self.space.choices, *self.space.parameters))}
        ranked: list[tuple[tuple[bool, int, float], Proposal]] = []
        soon = self.seconds_left() - self.seconds_of(point)  # after the next challenge
        for name, value in self._changes(point):
            alike = sum(other.values.get(name) == value and _alike(other, point) for other in seen)
            tests = max(alike, lost[name, value])
            if tests >= (1 if pressing else MAX_TESTS_PER_VALUE):
                continue
            changed = self._change(point, name, value)
            seconds = self.seconds_of(changed)
            if not pressing or seconds > soon:
                per_second = GAIN_RATIO ** order[name] / seconds
                reason = f"{name}={value} at the fastest so far, where it is {point.values.get(name)}"
                rank = (_late(name, incumbent), tests, -per_second)
                ranked.append((rank, Proposal(changed, SINGLE, reason)))
        yield from (proposal for _, proposal in sorted(ranked, key=lambda entry: entry[0]))

    def _lost(self, trials: Sequence[Trial]) -> Counter[tuple[str, Scalar]]:
        """How often each value of a knob, put in alone, was slower than the fastest beyond doubt."""
        names = {*self.space.choices, *self.space.parameters}
        lost: Counter[tuple[str, Scalar]] = Counter()
        for trial in trials:
            if trial.pair is not None and trial.pair.verdict == "slower":
                point = trial.burst.point
                changed = names & point.changes_from(trial.pair.partner).keys()
                changed.difference_update(*map(going_with, tuple(changed)))
                if len(changed) == 1:
                    (name,) = changed
                    lost[name, point.values.get(name)] += 1
        return lost

    def _changes(self, point: Point) -> Iterator[tuple[str, Scalar]]:
        for knob, choices in self.space.choices.items():
            current = getattr(point.config, knob)
            yield from ((knob, value) for value in _neighbours(current, choices.values) if value != current)
        for name, values in self.space.parameters.items():
            yield from ((name, value) for value in values if value != point.parameters.get(name))

    def _change(self, point: Point, name: str, value: Scalar) -> Point:
        if name in self.space.parameters:
            return Point(config=point.config, parameters={**point.parameters, name: value})
        config = point.config
        if name == "num_workers" and "persistent_workers" in self.space.choices:
            config = with_workers(point, int(value or 0)).config
        return Point(config=self.space.changed(config, {name: value}), parameters=point.parameters)


def _late(name: str, incumbent: Trial) -> bool:
    """Whether a knob belongs to the part that does not limit the fastest point, so that others come first."""
    measured = incumbent.burst.measurement
    return measured is not None and unlikely_to_gain(name, measured)


def _unhindered_score(trial: Trial) -> float:
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
