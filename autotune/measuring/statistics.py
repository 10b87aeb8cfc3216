"""Intervals: by resampling, and by Student's t."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator

from autotune.stored import Figure

BOOTSTRAP_RESAMPLES = 1000
MOST_DRAWN = 2**20
"""Values at once, which take 8 MiB: a day of blocks would else take gigabytes."""
MOST_REMEMBERED = 128
"""Values of which it is remembered how often each was drawn: 1 MB, 64 times at most."""


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
        parts: Of the numerator.
        costs: Of the denominator, as many; above 0.
        seed: Of the resampling.
    """
    import numpy as np  # here: most who import this module draw no interval

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
    """How often each of so many values is drawn, in each resample: ``(resamples, count)``.

    Drawing them takes most of a bootstrap, and for one seed they are the same each time.
    """
    import numpy as np

    drawn = np.random.default_rng(seed).integers(count, size=(resamples, count))
    rows = np.arange(resamples)[:, None] * count
    return np.bincount((drawn + rows).ravel(), minlength=resamples * count).reshape(resamples, count).astype(float)


def _middle(resampled: Sequence[float]) -> Interval:
    """95 % of sorted values."""
    return Interval(resampled[round(0.025 * BOOTSTRAP_RESAMPLES)], resampled[round(0.975 * BOOTSTRAP_RESAMPLES) - 1])


def student_t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: exact for 1 and 2 degrees, else within 0.8 % (Cornish-Fisher)."""
    if degrees == 1:
        return 12.7062
    if degrees == 2:
        return 4.3027
    z = 1.959964
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
