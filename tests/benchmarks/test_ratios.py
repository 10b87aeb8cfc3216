"""Ratios of pairs and their intervals."""

from __future__ import annotations

import pytest

from autotune.measuring.statistics import Interval
from benchmarks.ratios import Ratio, paired_ratio, share_interval


def test_twice_and_half_as_fast_are_no_gain() -> None:
    """The mean is geometric."""
    assert paired_ratio([100, 100], [200, 50]).ratio == pytest.approx(1)


def test_drift_between_the_pairs_does_not_widen_the_interval() -> None:
    """It slows both of a pair."""
    low, high = paired_ratio([100, 50, 10], [120, 60, 12]).ci95
    assert (low, high) == pytest.approx((1.2, 1.2))


def test_interval_is_students() -> None:
    """Two pairs one apart, in logarithms: 12.7 standard errors of a half."""
    ratio = paired_ratio([1, 1], [1, 2.718281828])
    assert ratio.ci95.high == pytest.approx(ratio.ratio * 2.718281828 ** (12.7062 * 0.5), rel=1e-3)


@pytest.mark.parametrize(("other", "overlap"), [((1.1, 1.3), True), ((0.8, 1.0), True), ((1.21, 1.3), False)])
def test_intervals_overlap_when_they_share_a_value(other: tuple[float, float], overlap: bool) -> None:
    """Ends count."""
    ratio = Ratio(ratio=1.1, ci95=Interval(1.0, 1.2))
    assert ratio.overlaps(Ratio(ratio=sum(other) / 2, ci95=Interval(*other))) is overlap


@pytest.mark.parametrize(
    ("count", "total", "low", "high"), [(0, 200, 0.0, 0.01828), (5, 200, 0.00817, 0.05737), (10, 10, 0.69150, 1.0)]
)
def test_a_share_has_the_exact_interval(count: int, total: int, low: float, high: float) -> None:
    """As tables of Clopper and Pearson have it."""
    assert share_interval(count, total) == pytest.approx((low, high), abs=1e-5)
