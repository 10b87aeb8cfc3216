"""Estimates what each setting is worth, by Bayesian linear regression on the logarithms of ratios.

The logarithm of a config's speed over the baseline's is a sum of effects: one for each level of each knob, and a
smaller one for each pair of levels that meet. Every pair of configs that has played measures their difference, with a
known variance, so each block informs about all settings in which the two differ. The prior comes from the declarations
of the knobs, as the space orders and prefers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from autotune.knobs import KNOBS, Scalar, Space
from autotune.measuring import Pair, Point

Array = NDArray[np.float64]

WIDEST, NARROWEST, DECAY = 0.25, 0.04, 0.85
"""The prior standard deviation of a level's gain, as a logarithm: for the first knob of a space, the least one, and the
factor from each knob to the next. Gains of 5 to 60 % were confirmed on the workloads of the guides."""
PREFERRED, DOUBTFUL = 0.4, -0.1
"""The expected gain of the preferred level and of any other one, as shares of the standard deviation. Not tuned: most
levels that nothing recommends lose a little."""
OVERHEAD_BOUND = (0.4, 0.4)
"""The expected gain of compiling if calling operators is most of the work, and its standard deviation: 1.3 to 2 × is
usual."""
COMPILING = (0.05, 0.2)
"""The same for other workloads: 1.0 to 2.1 × were measured on CPUs, far more than other knobs gain."""
MODES_DIFFER = 0.4
"""The standard deviation of one mode's gain over another, as a share of that of compiling."""
MEETING, KNOWN_TO_MEET = 0.25, 0.7
"""The standard deviation of the joint gain of two settings, as a share of the smaller one's own deviation: for most,
and for those known to depend on each other. Not tuned."""
MISFIT = 0.04
"""The standard deviation of the part of a config's log speed that no sum of effects explains. Not tuned; close to the
difference between two processes of one config."""
LEAST_VARIANCE = 1e-12
"""The least variance of a gain: rounding errors must not go below."""


@dataclass(frozen=True)
class Feature:
    """A level of a knob: on at that level or, on a scale, at all levels beyond it as seen from the baseline's."""

    knob: str  # or an argument of `build()`
    levels: tuple[Scalar, ...]  # at which it is on; on a scale, the two ends of the step
    mean: float  # of the gain, as a logarithm
    deviation: float  # standard deviation of the gain
    is_step: bool = False  # of a scale

    def at(self, value: Scalar) -> float:
        """How far it is on, from 0 to 1: between two levels of a scale, in part."""
        if not self.is_step:
            return float(value in self.levels)
        near, far = (_place(self.knob, level) for level in self.levels)
        return min(1.0, max(0.0, (_place(self.knob, value) - near) / (far - near)))


class Design:
    """The design matrix: turns points into rows of features, and holds the prior of each feature's effect.

    Args:
        space: The search space. All gains are relative to its baseline; its order of knobs, its preferences and its
            machine decide the prior.
    """

    def __init__(self, space: Space) -> None:
        levels: dict[str, Sequence[Scalar]] = {knob: choices.values for knob, choices in space.choices.items()}
        deviations = {knob: max(NARROWEST, WIDEST * DECAY**place) for place, knob in enumerate(levels)}
        usual = max(NARROWEST, WIDEST * DECAY ** len(levels))
        own = vars(space.baseline)
        levels |= space.parameters
        self.features = [
            feature
            for knob, values in levels.items()
            for feature in _features(knob, values, own.get(knob), deviations.get(knob, usual), space)
        ]
        pairs = [
            (i, j)
            for (i, first), (j, second) in combinations(enumerate(self.features), 2)
            if first.knob != second.knob and first.knob in KNOBS
        ]
        self._first = np.array([i for i, _ in pairs], dtype=int)
        self._second = np.array([j for _, j in pairs], dtype=int)
        alone = np.array([feature.deviation for feature in self.features])
        share = np.array([_meeting(self.features[i].knob, self.features[j].knob) for i, j in pairs])
        together = share * np.minimum(alone[self._first], alone[self._second])
        self.mean: Array = np.concatenate([[feature.mean for feature in self.features], np.zeros(len(pairs))])
        self.deviation: Array = np.concatenate([alone, together])
        self._knobs = {knob: tuple(features) for knob, features in groupby(self.features, lambda feature: feature.knob)}
        self._levels: dict[tuple[str, Scalar, bool], list[float]] = {}
        self._points: dict[Point, Array] = {}

    def rows(self, points: Sequence[Point]) -> Array:
        """One row for each point: each feature by itself, then the product of each two that may meet."""
        alone = self._alone(points)
        return np.hstack([alone, alone[:, self._first] * alone[:, self._second]])

    def worth(self, effects: Array) -> Callable[[Sequence[Point]], Array]:
        """The function ``points -> rows(points) @ effects``, which never holds the products: it ranks many points."""
        count = len(self.features)
        meeting = np.zeros((count, count))
        meeting[self._first, self._second] = effects[count:]

        def worth_of(points: Sequence[Point]) -> Array:
            alone = self._alone(points)
            worth: Array = alone @ effects[:count] + (alone @ meeting * alone).sum(axis=1)
            return worth

        return worth_of

    def _alone(self, points: Sequence[Point]) -> Array:
        """How far each feature is on, one row for each point."""
        rows = []
        for point in points:
            row = self._points.get(point)
            if row is None:
                values = point.values
                levels = (self._level(knob, values.get(knob), _is_idle(knob, values)) for knob in self._knobs)
                row = self._points[point] = np.array(list(chain.from_iterable(levels)))
            rows.append(row)
        return np.stack(rows) if rows else np.zeros((0, len(self.features)))

    def _level(self, knob: str, value: Scalar, is_idle: bool) -> list[float]:
        """How far each feature of one knob is on."""
        key = knob, value, is_idle
        if key not in self._levels:
            self._levels[key] = [0.0 if is_idle else feature.at(value) for feature in self._knobs[knob]]
        return self._levels[key]


class Effects:
    """The posterior of all effects, after some pairs."""

    def __init__(self, design: Design, pairs: Iterable[tuple[Point, Pair]]) -> None:
        self._design = design
        seen = list(pairs)
        played = dict.fromkeys(point for candidate, pair in seen for point in (candidate, pair.partner))
        self._own = {point: index for index, point in enumerate(played)}
        self._prior = np.concatenate([design.deviation**2, np.full(len(self._own), MISFIT**2)])
        believed = np.concatenate([design.mean, np.zeros(len(self._own))])
        rows = self._rows([point for point, _ in seen]) - self._rows([pair.partner for _, pair in seen])
        ratios = np.array([math.log(pair.ratio) for _, pair in seen])
        noise = np.array([pair.error**2 for _, pair in seen])
        self._seen = rows * self._prior
        self._gain = np.linalg.solve(self._seen @ rows.T + np.diag(noise), self._seen).T
        self.mean = believed + self._gain @ (ratios - rows @ believed)
        self._rows_seen, self._ratios, self._noise, self._believed = rows, ratios, noise, believed

    def beside(self, points: Sequence[Point], other: Point) -> Beliefs:
        """The gains of points over another one, as logarithms, with their uncertainty."""
        rows = self._rows(points) - self._rows([other])
        explained = ((rows @ self._gain) * (rows @ self._seen.T)).sum(axis=1)
        unseen = np.array([0.0 if point in self._own else MISFIT**2 for point in points])
        variance = rows**2 @ self._prior - explained + unseen
        return Beliefs(rows @ self.mean, np.sqrt(np.maximum(variance, LEAST_VARIANCE)))

    def explained(self, points: Sequence[Point], other: Point) -> Array:
        """What the settings of some points gain over those of another one, as logarithms, without each point's own."""
        rows = self._design.rows(points) - self._design.rows([other])
        gains: Array = rows @ self.mean[: rows.shape[1]]
        return gains

    def drawn(self, generator: np.random.Generator) -> Callable[[Sequence[Point]], Array]:
        """The worth of points under one draw of all effects (Thompson, 1933), by Matheron's rule."""
        effects = generator.normal(self._believed, np.sqrt(self._prior))
        seen = self._rows_seen @ effects + generator.normal(0.0, np.sqrt(self._noise))
        effects += self._gain @ (self._ratios - seen)
        settings = self._design.worth(effects[: len(self._design.mean)])
        own = effects[len(self._design.mean) :]
        return lambda points: settings(points) + self._own_columns(points) @ own

    def _rows(self, points: Sequence[Point]) -> Array:
        """Rows of the design, each with one more column for every point that has played: its unexplained part."""
        return np.hstack([self._design.rows(points), self._own_columns(points)])

    def _own_columns(self, points: Sequence[Point]) -> Array:
        own = np.zeros((len(points), len(self._own)))
        for row, point in enumerate(points):
            if point in self._own:
                own[row, self._own[point]] = 1.0
        return own


@dataclass(frozen=True)
class Beliefs:
    """Gains of some points over another one, as logarithms."""

    mean: Array  # gain of each point
    deviation: Array  # standard deviation of each gain


def _features(knob: str, values: Sequence[Scalar], own: Scalar, deviation: float, space: Space) -> Iterable[Feature]:
    """The features of one knob, relative to the baseline's level."""
    preferred, compiles = space.preferred.get(knob), knob in KNOBS and bool(KNOBS[knob].hides_overhead)
    mean = 0.0
    if compiles:
        mean, deviation = OVERHEAD_BOUND if space.overhead_bound else COMPILING
    others = [value for value in dict.fromkeys(values) if value != own]
    if knob in KNOBS and KNOBS[knob].scale is not None:
        yield from _steps(knob, [*others, own], own, preferred, deviation)
        return
    shared = compiles and len(others) > 1
    if shared:
        yield Feature(knob, tuple(others), mean, deviation)
    for value in others:
        expected = PREFERRED if value == preferred else DOUBTFUL
        alone = MODES_DIFFER * deviation if shared else deviation
        yield Feature(knob, (value,), 0.0 if shared else mean or expected * deviation, alone)


def _steps(knob: str, values: Sequence[Scalar], own: Scalar, preferred: Scalar, deviation: float) -> Iterable[Feature]:
    """The steps of a scale away from the baseline's level: a random walk, so that neighbours are similar."""
    above = sorted((v for v in values if _place(knob, v) >= _place(knob, own)), key=lambda v: _place(knob, v))
    below = sorted((v for v in values if _place(knob, v) <= _place(knob, own)), key=lambda v: -_place(knob, v))
    for side in (above, below):
        for near, far in pairwise(side):
            towards = preferred in side and side.index(preferred) >= side.index(far)
            each = deviation / math.sqrt(2)
            yield Feature(knob, (near, far), (PREFERRED if towards else DOUBTFUL) * each, each, is_step=True)


def _place(knob: str, value: Scalar) -> float:
    """The position of a level on its knob's scale; None means all threads for ``num_threads``, else it comes first."""
    if value is None:
        return 1e6 if knob == "num_threads" else -2.0
    return math.log2(max(float(value), 0.5)) if KNOBS[knob].scale == "logarithmic" else math.log2(1 + float(value))


def _is_idle(knob: str, values: Mapping[str, Scalar]) -> bool:
    """Whether a knob has no effect, because the knob that it depends on is off."""
    with_which = KNOBS[knob].goes_with if knob in KNOBS else None
    return with_which is not None and with_which in values and not values[with_which]


def _meeting(knob: str, other: str) -> float:
    meets = {name: KNOBS[name].meets for name in (knob, other) if name in KNOBS}
    return KNOWN_TO_MEET if other in meets.get(knob, ()) or knob in meets.get(other, ()) else MEETING
