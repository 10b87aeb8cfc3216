"""Ranks the points of a search: the first is the incumbent, and each other has a standard error relative to it.

The ranking follows the model after all pairs. A pair informs about all points that share a setting with it, so a point
does not come first by luck.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.measuring import PROCESS_SPREAD, Pair, Point, pair_apart
from autotune.search.model import Design, Effects

if TYPE_CHECKING:
    from autotune.search.trials import Trial


@dataclass(frozen=True)
class Standing:
    """A point's place in the ranking."""

    point: Point
    score: float  # by the objective, as the model estimates it
    error: float  # standard error of the logarithm of its score over the incumbent's


def standings(trials: Iterable[Trial], design: Design) -> list[Standing]:
    """All points that ended well in the search, best first; the first is the incumbent."""
    played = [trial for trial in trials if _counts(trial)]
    if not played:
        return []
    first = played[0]
    points = list(dict.fromkeys(trial.burst.point for trial in played))
    effects = Effects(design, pairs_of(played))
    gains = effects.beside(points, first.burst.point).mean
    best = points[int(gains.argmax())]
    errors = [math.hypot(error, PROCESS_SPREAD) for error in effects.beside(points, best).deviation]
    ranking = [
        Standing(point, (first.score or 0.0) * math.exp(gain), 0.0 if point == best else error)
        for point, gain, error in zip(points, gains, errors, strict=True)
    ]
    return sorted(ranking, key=lambda standing: standing.score, reverse=True)


def pairs_of(trials: Sequence[Trial]) -> list[tuple[Point, Pair]]:
    """All pairs of the search. A burst without a partner is compared with the first burst, with less certainty."""
    played = [trial for trial in trials if _counts(trial)]
    return [
        (trial.burst.point, trial.pair or pair_apart(played[0].burst.point, trial.score / played[0].score))
        for trial in played
        if trial.score and played[0].score and trial is not played[0]
    ]


def _counts(trial: Trial) -> bool:
    """Whether a trial measures its point's speed in the search."""
    return trial.round is None and trial.score is not None and not (trial.pair is not None and trial.pair.too_few)
