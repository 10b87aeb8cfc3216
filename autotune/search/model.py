"""What each setting is worth: Bayesian linear regression on the logarithms of ratios.

The logarithm of a config's speed over the baseline's is a sum of effects: one for each level of each knob, and a
smaller one for each two that meet. Every pair that has played measures the difference of two configs, with a known
variance; so each block informs about all settings in which the two differ. The prior comes from the declarations of the
knobs, as the space orders and prefers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from autotune.knobs import KNOBS, Scalar, Space
from autotune.measuring import Pair, Point

Array = NDArray[np.float64]

WIDEST, NARROWEST, DECAY = 0.25, 0.04, 0.85
"""Standard deviation of what a level gains, as a logarithm: of the knob that a space lists first, of the least, and how
it falls from one to the next. Gains of 5 to 60 % were confirmed on the workloads of the guides."""
PREFERRED, DOUBTFUL = 0.4, -0.1
"""What the preferred level is expected to gain, and any other one, as shares of the standard deviation. Chosen: most
levels that nothing speaks for lose a little."""
OVERHEAD_BOUND = (0.4, 0.4)
"""What compiling gains where calling operators is most of the work, and its standard deviation: 1.3 to 2 × is usual."""
COMPILING = (0.05, 0.2)
"""The same anywhere else: 1.0 to 2.1 × were measured on CPUs, and more than other knobs by far."""
MODES_DIFFER = 0.4
"""Of what compiling gains, the standard deviation of what one mode gains beside another."""
MEETING, KNOWN_TO_MEET = 0.25, 0.7
"""The standard deviation of what two settings gain by each other, as a share of what the smaller may gain alone; and of
those that are known to depend on each other. Chosen."""
INTERACTIONS = frozenset(
    map(frozenset, (
        ("compile_mode", "precision"), ("num_workers", "num_threads"), ("batch_size", "checkpointing"),
        ("batch_size", "precision"), ("memory_format", "precision"), ("persistent_workers", "num_workers"),
    ))
)  # fmt: skip
MISFIT = 0.04
"""Of a config's logarithm of speed, what no sum of effects explains. Chosen near what processes of one differ by."""
LEAST_VARIANCE = 1e-12
"""Of a gain: rounding must leave none below."""


@dataclass(frozen=True)
class Feature:
    """A level of a knob: on at the level, or, on a scale, at all levels beyond it as seen from the baseline's.

    Attributes:
        knob: Or an argument of `build()`.
        levels: Where it is on; on a scale, the two ends of the step.
        mean: What it is expected to gain, as a logarithm.
        deviation: The standard deviation of that.
        is_step: Whether it is a step of a scale.
    """

    knob: str
    levels: tuple[Scalar, ...]
    mean: float
    deviation: float
    is_step: bool = False

    def at(self, value: Scalar) -> float:
        """How far it is on: between two levels of a scale, in part."""
        if not self.is_step:
            return float(value in self.levels)
        near, far = (_place(self.knob, level) for level in self.levels)
        return min(1.0, max(0.0, (_place(self.knob, value) - near) / (far - near)))


class Design:
    """Turns points into rows of numbers, and knows what each number is expected to be worth.

    Args:
        space: What is searched: its order of knobs, what it prefers, and what the machine is like decide the prior.
        baseline: What the user trains with today: all gains are over it.
    """

    def __init__(self, space: Space, baseline: Point) -> None:
        self._baseline = baseline
        levels: dict[str, Sequence[Scalar]] = {knob: choices.values for knob, choices in space.choices.items()}
        deviations = {knob: max(NARROWEST, WIDEST * DECAY**place) for place, knob in enumerate(levels)}
        usual = max(NARROWEST, WIDEST * DECAY ** len(levels))
        levels |= space.parameters
        self.features = [
            feature
            for knob, values in levels.items()
            for feature in _features(knob, values, baseline.values.get(knob), deviations.get(knob, usual), space)
        ]
        pairs = [
            (i, j)
            for (i, one), (j, other) in combinations(enumerate(self.features), 2)
            if one.knob != other.knob and KNOBS.get(one.knob, None) is not None
        ]
        self._first = np.array([i for i, _ in pairs], dtype=int)
        self._second = np.array([j for _, j in pairs], dtype=int)
        alone = np.array([feature.deviation for feature in self.features])
        share = np.array([_meeting(self.features[i].knob, self.features[j].knob) for i, j in pairs])
        together = share * np.minimum(alone[self._first], alone[self._second])
        self.mean: Array = np.concatenate([[feature.mean for feature in self.features], np.zeros(len(pairs))])
        self.deviation: Array = np.concatenate([alone, together])
        self._known: dict[Point, Array] = {}

    def rows(self, points: Iterable[Point]) -> Array:
        """One row for each point."""
        found = [self._row(point) for point in points]
        return np.stack(found) if found else np.zeros((0, len(self.mean)))

    def _row(self, point: Point) -> Array:
        if point not in self._known:
            values = point.values
            alone = np.array(
                [
                    0.0 if _is_idle(feature.knob, values) else feature.at(values.get(feature.knob))
                    for feature in self.features
                ]
            )
            self._known[point] = np.concatenate([alone, alone[self._first] * alone[self._second]])
        return self._known[point]


class Effects:
    """What is believed of all effects, after some pairs.

    Args:
        design: Of the points.
        pairs: What played, each with the candidate's point.
    """

    def __init__(self, design: Design, pairs: Iterable[tuple[Point, Pair]]) -> None:
        self._design = design
        seen = list(pairs)
        played = dict.fromkeys(point for one, pair in seen for point in (one, pair.partner))
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
        """What points are believed to gain over another one, as logarithms."""
        rows = self._rows(points) - self._rows([other])
        known = ((rows @ self._gain) * (rows @ self._seen.T)).sum(axis=1)
        unseen = np.array([0.0 if point in self._own else MISFIT**2 for point in points])
        variance = rows**2 @ self._prior - known + unseen
        return Beliefs(rows @ self.mean, np.sqrt(np.maximum(variance, LEAST_VARIANCE)))

    def explained(self, points: Sequence[Point], other: Point) -> Array:
        """What the settings of some points gain over those of another one, as logarithms, without each point's own."""
        rows = self._design.rows(points) - self._design.rows([other])
        return rows @ self.mean[: rows.shape[1]]

    def drawn(self, generator: np.random.Generator) -> Callable[[Sequence[Point]], Array]:
        """What points may be worth, as one draw of all effects has it (Thompson, 1933), by Matheron's rule."""
        effects = generator.normal(self._believed, np.sqrt(self._prior))
        seen = self._rows_seen @ effects + generator.normal(0.0, np.sqrt(self._noise))
        effects += self._gain @ (self._ratios - seen)
        return lambda points: self._rows(points) @ effects

    def _rows(self, points: Sequence[Point]) -> Array:
        """Rows of the design, each with one more number for every point that has played: what no effect explains."""
        own = np.zeros((len(points), len(self._own)))
        for row, point in enumerate(points):
            if point in self._own:
                own[row, self._own[point]] = 1.0
        return np.hstack([self._design.rows(points), own])


@dataclass(frozen=True)
class Beliefs:
    """Gains of some points over one, as logarithms.

    Attributes:
        mean: Of each.
        deviation: The standard deviation of each.
    """

    mean: Array
    deviation: Array


def _features(knob: str, values: Sequence[Scalar], own: Scalar, deviation: float, space: Space) -> Iterable[Feature]:
    """The features of one knob, relative to the baseline's level."""
    preferred, compiles = space.preferred.get(knob), knob == "compile_mode"
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
    """The steps of a scale away from the baseline's level: a random walk, so that neighbours are alike."""
    above = sorted((v for v in values if _place(knob, v) >= _place(knob, own)), key=lambda v: _place(knob, v))
    below = sorted((v for v in values if _place(knob, v) <= _place(knob, own)), key=lambda v: -_place(knob, v))
    for side in (above, below):
        for near, far in pairwise(side):
            towards = preferred in side and side.index(preferred) >= side.index(far)
            each = deviation / math.sqrt(2)
            yield Feature(knob, (near, far), (PREFERRED if towards else DOUBTFUL) * each, each, is_step=True)


def _place(knob: str, value: Scalar) -> float:
    """Where a level lies on its knob's scale; None, which leaves it to torch, is all there is."""
    if value is None:
        return 1e6 if knob == "num_threads" else 0.0
    return math.log2(max(float(value), 0.5)) if KNOBS[knob].scale == "logarithmic" else math.log2(1 + float(value))


def _is_idle(knob: str, values: Mapping[str, Scalar]) -> bool:
    """Whether a knob means nothing here, without the one that it goes with."""
    with_which = KNOBS[knob].goes_with if knob in KNOBS else None
    return with_which is not None and with_which in values and not values[with_which]


def _meeting(knob: str, other: str) -> float:
    return KNOWN_TO_MEET if frozenset((knob, other)) in INTERACTIONS else MEETING
