"""Chooses what to try next: a bundle of promising settings, the bundle without each, then the best gain per second.

The next proposal depends only on the trials so far, so a resumed run continues where it stopped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, combinations
from statistics import NormalDist
from typing import Literal

import numpy as np

from autotune.knobs import Scalar, Space
from autotune.measuring import Interval, Pair, Point
from autotune.search.bursts import Bursts
from autotune.search.ceilings import most_gain
from autotune.search.model import Effects
from autotune.search.proposal import BUNDLE, ELIMINATION, GAIN, LARGEST, Proposal
from autotune.search.ranking import pairs_of
from autotune.search.trials import Trial
from autotune.units import format_seconds

NOTABLE = 0.15
"""The least probability that the bundle gains without a setting, for trying it without. On five replayed surfaces, 0.15
did better than 0.05 on one and the same on the others."""
LEAST_GAIN = 1e-4
"""The least expected gain, as a logarithm, for trying a new candidate. Not tuned: 0.01 % changes no answer."""
AGAIN = 0.005
"""The same for a candidate that has played. Answers within 2 % count as equal; 0.002 did no better in replays."""
PRICE = 0.04
"""The gain, as a logarithm, that the search expects from all its remaining time. A first compile must gain its share of
that. Not tuned."""
MOST_DOUBLES = 400
"""The most pairs of changes that one proposal considers; those of the first knobs come first."""
MOST_GROWTH = 2
"""A batch that no memory model covers is at most this many times the largest that ran; only one point of a turn may
exceed the largest."""
LEAPS = 8
"""The number of draws of all effects; each proposes its own best point. 16 did no better than 8 in replays."""
FANCIED_ERROR = 0.03
"""The standard error that the search assumes for a candidate that is still playing."""
_UNIT = NormalDist()


class Chooser:
    """Proposes points by their expected gain per second.

    Args:
        bursts: What has run, what it costs, and the time that is left.
        refuse: Returns why a point must not run, or None.
        larger: Returns points with the largest batch that memory allows, and a point's other knobs. Each has a reason.
    """

    def __init__(
        self,
        space: Space,
        bursts: Bursts,
        refuse: Callable[[Point], str | None],
        larger: Callable[[Point], Iterable[tuple[Point, str]]],
        seed: int,
    ) -> None:
        self._space = space
        self._bursts, self._costs = bursts, bursts.costs
        self._baseline, self._design = bursts.baseline, bursts.log.design
        self._refuse = refuse
        self._larger = larger
        self._generator = np.random.default_rng(seed)
        self._changed: dict[Point, dict[tuple[str, Scalar], Point]] = {}
        self._around: dict[Point, list[Point]] = {}
        # exhausted: all is tried; plateau: nothing is worth its time; budget: something is, but there is no time for it
        self.ended: Literal["exhausted", "plateau", "budget"] = "exhausted"

    def next(self, playing: Sequence[Point]) -> Proposal | None:
        """The next proposal; None if no point is left, or none is worth its time.

        Args:
            playing: Points that were proposed and have not ended.
        """
        trials, incumbent = self._bursts.trials, self._bursts.log.incumbent()
        tried = {trial.burst.point for trial in trials} | {*playing}
        guesses = [Point(config=config, parameters=self._baseline.parameters) for config in self._space.suggested()]
        if not any(trial.stage == BUNDLE and trial.burst.ok for trial in trials):
            for point in guesses:
                cheap = self._costs.is_compiled(point.config) or incumbent is None
                if point not in tried and cheap and self._refuse(point) is None:
                    return Proposal(point, BUNDLE, "what this hardware suggests, all at once")
        if incumbent is None:
            return None
        best = incumbent.burst.point
        effects = self._effects(best, playing)
        eliminates = incumbent.stage in {BUNDLE, ELIMINATION}
        if eliminates and (proposal := self._elimination(best, effects, tried)) is not None:
            return proposal
        larger = dict(self._larger(best))
        again = (trial.burst.point for trial in trials if trial.round is None and trial.burst.ok)
        ideas = dict.fromkeys(chain(self._changes_of(best), self._leaps(best, effects), guesses, larger, again))
        out = {best, *playing} | {trial.burst.point for trial in trials if not trial.burst.ok}
        ran = max(trial.burst.point.config.batch_size for trial in trials if trial.burst.ok)
        most = ran if any(point.config.batch_size > ran for point in playing) else MOST_GROWTH * ran
        leaps = larger if most > ran else {}

        def may_run(point: Point) -> bool:
            return point not in out and (point.config.batch_size <= most or point in leaps)

        return self._most_promising([point for point in ideas if may_run(point)], best, effects, larger)

    def _effects(self, best: Point, playing: Sequence[Point]) -> Effects:
        """The effects of all settings so far; points that play now count as if they came out as expected."""
        seen = pairs_of(self._bursts.trials)
        effects = Effects(self._design, seen)
        if not playing:
            return effects
        expected = effects.beside(playing, best).mean
        fancied = (_fancied(best, float(gain)) for gain in expected)
        return Effects(self._design, [*seen, *zip(playing, fancied, strict=True)])

    def _elimination(self, best: Point, effects: Effects, tried: set[Point]) -> Proposal | None:
        """The bundle without one of its settings, the most doubtful first."""
        names = best.changes_from(Point(config=self._space.start, parameters=self._baseline.parameters))
        without = {
            self._change(best, name, was): name
            for name, (was, _) in names.items()
            if name in self._space.choices or name in self._space.parameters
        }
        points = [point for point in without if point not in tried and point != best]
        if not points:
            return None
        beliefs = effects.beside(points, best)
        for index in sorted(range(len(points)), key=lambda index: -beliefs.mean[index]):
            mean, deviation = float(beliefs.mean[index]), float(beliefs.deviation[index])
            if _UNIT.cdf(mean / deviation) >= NOTABLE and self._refuse(points[index]) is None:
                name = without[points[index]]
                reason = f"the bundle without {name}: expected {_between(mean, deviation)}"
                return Proposal(points[index], ELIMINATION, reason)
        return None

    def _most_promising(
        self, points: list[Point], best: Point, effects: Effects, larger: dict[Point, str]
    ) -> Proposal | None:
        """The point with the best expected gain per second, if it is worth its time."""
        self.ended = "exhausted"
        if not points:
            return None
        beliefs = effects.beside(points, best)
        trials = self._bursts.trials
        chances = _Chances(trials, self._baseline)
        seconds_left = max(self._bursts.searching_seconds, 1e-3)
        measured = next(trial.burst.measurement for trial in reversed(trials) if trial.burst.point == best)
        tried = {trial.burst.point for trial in trials}
        ranked: list[tuple[float, float, int]] = []
        gains = beliefs.mean.tolist(), beliefs.deviation.tolist()
        for index, (point, mean, deviation) in enumerate(zip(points, *gains, strict=True)):
            gain = expected_gain(mean, deviation) * chances.of(point)
            if gain < (AGAIN if point in tried else LEAST_GAIN):
                continue
            if measured is not None:
                gain = min(gain, most_gain(point.changes_from(best), measured, self._bursts.device))
            ranked.append((gain, self._costs.challenge_seconds(point, best), index))
        self.ended = "exhausted" if ranked else "plateau"
        for gain, seconds, index in sorted(ranked, key=lambda row: row[0] / row[1], reverse=True):
            point = points[index]
            compiles = not self._costs.is_compiled(point.config)
            if seconds > seconds_left:
                self.ended = "budget"
                continue
            if compiles and gain < PRICE * seconds / seconds_left:
                if self.ended != "budget":
                    self.ended = "plateau"
                continue
            if self._refuse(point) is None:
                promise = _between(float(beliefs.mean[index]), float(beliefs.deviation[index]))
                reason = f"expected {promise}, costs {format_seconds(seconds)}"
                if point in larger:
                    return Proposal(point, LARGEST, f"{larger[point]}; {reason}")
                return Proposal(point, GAIN, reason)
        return None

    def _changes_of(self, best: Point) -> Iterator[Point]:
        """The incumbent with one or two settings changed."""
        changes = self._singles(best)
        yield from (self._change(best, *change) for change in changes)
        doubles = [(first, second) for first, second in combinations(changes, 2) if first[0] != second[0]]
        for first, second in doubles[:MOST_DOUBLES]:
            yield self._change(self._change(best, *first), *second)

    def _leaps(self, best: Point, effects: Effects) -> Iterator[Point]:
        """The best points, uphill from the incumbent, under several draws of the effects."""
        for _ in range(LEAPS):
            worth, here = effects.drawn(self._generator), best
            while True:
                if here not in self._around:
                    self._around[here] = [here, *(self._change(here, *change) for change in self._singles(here))]
                around = self._around[here]
                there = around[int(worth(around).argmax())]
                if there == here:
                    break
                here = there
            yield here

    def _singles(self, point: Point) -> list[tuple[str, Scalar]]:
        """All single changes of a point."""
        names = {name: choices.values for name, choices in self._space.choices.items()} | dict(self._space.parameters)
        held = point.values
        return [(name, value) for name, values in names.items() for value in values if value != held.get(name)]

    def _change(self, point: Point, name: str, value: Scalar) -> Point:
        changed = self._changed.setdefault(point, {})
        if (name, value) not in changed:
            changed[name, value] = self._made(point, name, value)
        return changed[name, value]

    def _made(self, point: Point, name: str, value: Scalar) -> Point:
        # The baseline itself may not be what the options ask for.
        config = self._space.start if point.config == self._baseline.config else point.config
        if name in self._space.parameters:
            return Point(config=config, parameters={**point.parameters, name: value})
        values: dict[str, Scalar] = {name: value}
        if (
            name == "num_workers"
            and value
            and not point.config.num_workers
            and "persistent_workers" in self._space.choices
        ):
            values["persistent_workers"] = True  # workers that restart every epoch give a poor first impression
        return Point(config=self._space.changed(config, values), parameters=point.parameters)


class _Chances:
    """How likely points are to run, by how often earlier points with the same values did."""

    def __init__(self, trials: Sequence[Trial], baseline: Point) -> None:
        self._baseline = baseline
        self._failed: Counter[tuple[str, Scalar]] = Counter()
        self._ran: Counter[tuple[str, Scalar]] = Counter()
        for trial in trials:
            if trial.round is None and not trial.burst.outcome.is_memory:
                counter = self._ran if trial.burst.ok else self._failed
                counter.update(trial.burst.point.new_values(baseline).items())

    def of(self, point: Point) -> float:
        """The probability that a point runs: that of its most suspicious setting."""
        if not self._failed:
            return 1.0
        return min(
            (
                (self._ran[setting] + 1) / (self._ran[setting] + self._failed[setting] + 1)
                for setting in point.new_values(self._baseline).items()
            ),
            default=1.0,
        )


def expected_gain(mean: float, deviation: float) -> float:
    """The expected gain of keeping the better of two points, for a normal gain (Mockus, 1975)."""
    beyond = mean / deviation
    return mean * _UNIT.cdf(beyond) + deviation * _UNIT.pdf(beyond)


def _fancied(partner: Point, gain: float) -> Pair:
    half = 3 * FANCIED_ERROR
    interval = Interval(math.exp(gain - half), math.exp(gain + half))
    return Pair(partner=partner, ratio=math.exp(gain), ci95=interval, blocks=0)


def _between(mean: float, deviation: float) -> str:
    """The interval, in words, that holds a gain two times in three; takes logarithms."""
    low, high = (round(100 * math.expm1(mean + side * deviation)) for side in (-1, 1))
    return f"between {low} % and {high} %"
