"""Ranks the points of a search: the first one is the incumbent, and each other one has a standard error beside it.

The ranking is what the model believes after all pairs. A pair informs about all points that share a setting with it, so
a lucky one does not come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.knobs import TrainConfig
from autotune.measuring import PROCESS_SPREAD, Pair, Point, pair_apart
from autotune.search.model import Design, Effects

if TYPE_CHECKING:
    from autotune.search.trials import Trial


@dataclass(frozen=True)
class Standing:
    """How a point stands.

    Attributes:
        point: The point.
        score: By the objective, as the model believes it to be.
        error: The standard error of the logarithm of its score beside the incumbent's.
    """

    point: Point
    score: float
    error: float


def standings(trials: Iterable[Trial], design: Design) -> list[Standing]:
    """All points that ended well in the search, the best first: that is the incumbent."""
    played = [trial for trial in trials if _counts(trial)]
    if not played:
        return []
    first = played[0]
    points = list(dict.fromkeys(trial.burst.point for trial in played))
    effects = Effects(design, pairs_of(played))
    gains = effects.beside(points, first.burst.point).mean
    best = points[int(gains.argmax())]
    errors = [math.hypot(error, PROCESS_SPREAD) for error in effects.beside(points, best).deviation]
    found = [
        Standing(point, (first.score or 0.0) * math.exp(gain), 0.0 if point == best else error)
        for point, gain, error in zip(points, gains, errors, strict=True)
    ]
    return sorted(found, key=lambda one: one.score, reverse=True)


def pairs_of(trials: Sequence[Trial]) -> list[tuple[Point, Pair]]:
    """All pairs of the search. A burst without a partner is compared with the first one, which is less certain."""
    played = [trial for trial in trials if _counts(trial)]
    return [
        (trial.burst.point, trial.pair or pair_apart(played[0].burst.point, trial.score / played[0].score))
        for trial in played
        if trial.score and played[0].score and trial is not played[0]
    ]


def _counts(trial: Trial) -> bool:
    """Whether a trial shows the speed of its point in the search."""
    return trial.round is None and trial.score is not None and not (trial.pair is not None and trial.pair.too_few)


def resource_cost(config: TrainConfig) -> tuple[bool, int]:
    """What a config costs besides time and memory, most expensive first: compiling, workers."""
    return config.compile_mode is not None, config.num_workers
