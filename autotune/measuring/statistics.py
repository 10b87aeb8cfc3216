"""Intervals: by resampling, by Student's t, and by Bayes where there are few values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator

from autotune.stored import Figure

BOOTSTRAP_RESAMPLES = 1000
MOST_DRAWN = 2**20
"""Values drawn at once, which take 8 MiB: those of a day of blocks would take gigabytes."""
MOST_REMEMBERED = 128
"""Most values whose draws are cached: 1 MB an entry, and at most 64 entries."""

USUAL_SPREAD, SPREAD_FACTOR = 0.05, math.e
"""How the logarithm of a ratio varies from one pair of processes to another: the median of workloads, and the factor
that is one standard deviation of its logarithm. For the 21 races in ``results/``, 0.074 and 2.1 are most likely
(``python -m benchmarks.process_spread results/*/*.json``); with fresh processes of other benchmarks, 0.052 and 2.0. The
wider factor leaves room for quieter and for noisier machines; the bounds of one pair, 0.24 and 0.26, hardly differ."""
SPREAD_PLACES = tuple(place / 4 for place in range(-16, 17))
"""The spreads that `deviation_bound` adds up, in standard deviations from the median. Twice as many change no third
digit."""

NEARLY_NORMAL = 1000
"""Degrees of freedom beyond which Student's t is a normal distribution to three digits."""


class Interval(NamedTuple):
    """A confidence interval."""

    low: Figure
    high: Figure


def _in_order(interval: Interval) -> Interval:
    """Refuses an interval whose ends are exchanged."""
    if interval.low > interval.high:
        raise ValueError(f"expected the lower end first, got {interval.low:g} and {interval.high:g}")
    return interval


KnownInterval = Annotated[Interval, AfterValidator(_in_order)]
"""An interval as a file gives it."""


def ratio_interval(parts: Sequence[float], costs: Sequence[float], *, seed: int = 0) -> Interval:
    """95 % percentile bootstrap interval (Efron & Tibshirani 1993) of a sum over another, such as samples over seconds.

    Both are resampled together; deterministic for a seed.

    Args:
        parts: Summands of the numerator.
        costs: Summands of the denominator, as many; above 0.
        seed: Seed of the resampling.
    """
    import numpy as np  # here: most importers of this module draw no interval

    above, below = np.asarray(parts, dtype=float), np.asarray(costs, dtype=float)
    if len(above) == 1:
        only = float(above[0] / below[0])
        return Interval(only, only)
    if len(above) <= MOST_REMEMBERED:
        times = _times_drawn(len(above), BOOTSTRAP_RESAMPLES, seed)
        return _middle(sorted((times @ above / (times @ below)).tolist()))
    rng = np.random.default_rng(seed)
    at_once = max(1, MOST_DRAWN // len(above))
    ratios: list[float] = []
    while len(ratios) < BOOTSTRAP_RESAMPLES:
        drawn = rng.integers(len(above), size=(min(at_once, BOOTSTRAP_RESAMPLES - len(ratios)), len(above)))
        ratios += (above[drawn].sum(axis=1) / below[drawn].sum(axis=1)).tolist()
    return _middle(sorted(ratios))


@functools.lru_cache(maxsize=64)
def _times_drawn(count: int, resamples: int, seed: int) -> Any:
    """How often each value is drawn in each resample, as an array ``(resamples, count)``.

    Drawing takes most of a bootstrap's time, and a seed gives the same draws each time.
    """
    import numpy as np

    drawn = np.random.default_rng(seed).integers(count, size=(resamples, count))
    rows = np.arange(resamples)[:, None] * count
    return np.bincount((drawn + rows).ravel(), minlength=resamples * count).reshape(resamples, count).astype(float)


def _middle(resampled: Sequence[float]) -> Interval:
    """The middle 95 % of sorted values."""
    return Interval(resampled[round(0.025 * BOOTSTRAP_RESAMPLES)], resampled[round(0.975 * BOOTSTRAP_RESAMPLES) - 1])


@functools.lru_cache(maxsize=1024)
def student_t(degrees: int, tail: float = 0.025) -> float:
    """The quantile of Student's t above which `tail` of the distribution lies, to six digits.

    By bisection of the finite series for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4).
    """
    if degrees > NEARLY_NORMAL:
        return NormalDist().inv_cdf(1 - tail)
    return _quantile(lambda value: _beyond(value, degrees), tail)


@functools.lru_cache(maxsize=1024)
def deviation_bound(deviation: float, pairs: int, tail: float = 0.025) -> float:
    """What the deviation of a pair of processes from the true ratio exceeds with the probability `tail`, on each side.

    The true spread is unknown. Its prior is log-normal, from other workloads; the pairs' own deviation weighs its
    values. The result is a quantile of the normal distributions of all these spreads together. With a flat prior it
    would be Student's t, which two or three pairs make useless. From five pairs on, the two agree within a tenth.

    Args:
        deviation: Standard deviation of the logarithms of the pairs' ratios; any number if there is one pair.
        pairs: The number of pairs.
        tail: The probability on each side.
    """
    spreads = [USUAL_SPREAD * SPREAD_FACTOR**place for place in SPREAD_PLACES]
    logs = [
        -(place**2) / 2 - (pairs - 1) * (math.log(spread) + (deviation / spread) ** 2 / 2)
        for place, spread in zip(SPREAD_PLACES, spreads, strict=True)
    ]
    weights = [math.exp(one - max(logs)) for one in logs]
    both_sides = 2 * math.fsum(weights)

    def beyond(value: float) -> float:
        shares = (
            weight * math.erfc(value / spread / math.sqrt(2)) for weight, spread in zip(weights, spreads, strict=True)
        )
        return math.fsum(shares) / both_sides

    return _quantile(beyond, tail)


def _quantile(beyond: Callable[[float], float], tail: float) -> float:
    """The value above which `tail` lies, to six digits: by bisection of the share above a value, which falls."""
    low, high = 0.0, 1.0
    while beyond(high) > tail:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > tail else (low, middle)
    return high


def _beyond(value: float, degrees: int) -> float:
    """The share of Student's t above a value."""
    angle = math.atan(value / math.sqrt(degrees))
    odd = degrees % 2 == 1
    term = math.cos(angle) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for power in range(3 if odd else 2, degrees - 1, 2):
        term *= (power - 1) / power * math.cos(angle) ** 2
        total += term
    within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 - within) / 2
