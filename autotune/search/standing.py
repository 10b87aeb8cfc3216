"""How points stand beside each other after a search: who the incumbent is, and what is doubtful of all the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.knobs import TrainConfig
from autotune.measuring import Point
from autotune.search.turns import APART_ERROR

if TYPE_CHECKING:
    from autotune.search.trials import Trial

PROCESS_SPREAD = 0.015
"""Of the logarithm of a ratio, which no pair of processes knows of: five pairs that lived side by side for a minute
differed by as much, and no more than the noise of their turns explained."""


def incumbent_of(trials: Iterable[Trial]) -> Trial | None:
    """The trial that made the best point of some trials the incumbent: each was promoted over the one before."""
    return next(reversed(incumbents(trials)), None)


def incumbents(trials: Iterable[Trial]) -> list[Trial]:
    """All trials that made their point the incumbent, in order."""
    found: list[Trial] = []
    for trial in trials:
        if trial.round is None and trial.score is not None and _takes_over(trial, found[-1] if found else None):
            found.append(trial)
    return found


def _takes_over(trial: Trial, incumbent: Trial | None) -> bool:
    """Whether a trial makes its point the incumbent.

    It may have played against an earlier one, beside another candidate or on another machine: then the score that it
    reaches surely must be higher than this one's.
    """
    pair = trial.pair
    if incumbent is None or pair is None:
        return incumbent is None
    behind = pair.partner != incumbent.burst.point and _sure_score(trial) <= _sure_score(incumbent)
    return pair.promotes and not behind


def _sure_score(trial: Trial) -> float:
    """A score, less its standard error: of two that few blocks speak for, the luckier one is not the better one."""
    error = trial.pair.error if trial.pair is not None else 0.0
    return (trial.score or 0.0) * math.exp(-error)


def resource_cost(config: TrainConfig) -> tuple[bool, int]:
    """What a config costs besides time and memory, most expensive first: compiling, workers."""
    return config.compile_mode is not None, config.num_workers


@dataclass(frozen=True)
class Standing:
    """How a point stands at the end of a search.

    Attributes:
        point: The point.
        score: By the objective.
        error: The standard error of the logarithm of its score beside the last incumbent's: what is doubtful of its
            own pair, and of those by which incumbents followed each other since.
    """

    point: Point
    score: float
    error: float


def standings(trials: Sequence[Trial]) -> list[Standing]:
    """All points that ended well in the search: the last incumbent first, then by their scores."""
    incumbent: Trial | None = None
    variance: dict[Point, float] = {}  # of the logarithm of each incumbent's score
    pairs: dict[Point, tuple[float, float, Point]] = {}
    for trial in trials:
        if trial.round is not None or trial.score is None:
            continue
        point, pair = trial.burst.point, trial.pair
        # Without a pair its rate is that of a burst by itself, on a machine that may have been another one since.
        error = pair.error if pair is not None else APART_ERROR if incumbent is not None else 0.0
        own = PROCESS_SPREAD**2 + error**2
        partner = pair.partner if pair is not None else point
        pairs[point] = trial.score, own, partner
        if _takes_over(trial, incumbent):
            variance[point] = variance.get(partner, 0.0) + (own if incumbent is not None else 0.0)
            incumbent = trial
    if incumbent is None:
        return []
    last = incumbent.burst.point
    found = []
    for point, (score, own, partner) in pairs.items():
        since = max(0.0, variance[last] - variance.get(point if point in variance else partner, 0.0))
        found.append(Standing(point, score, math.sqrt(since + (0.0 if point in variance else own))))
    return sorted(found, key=lambda one: (one.point == last, one.score), reverse=True)
