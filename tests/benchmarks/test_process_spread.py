"""How processes differ over many workloads: the fit finds what races were drawn with."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from benchmarks.process_spread import Race, fitted


def test_the_fit_finds_the_spread_that_races_were_drawn_with() -> None:
    """Their median is 0.05; a third of the workloads are noisier than 0.1 or quieter than 0.025."""
    rng = random.Random(0)

    def race() -> Race:
        spread = 0.05 * 2 ** rng.gauss(0, 1)
        return Race("made up", statistics.stdev(rng.gauss(0, spread) for _ in range(5)), 5)

    median, factor = fitted([race() for _ in range(40)])
    assert math.log(median / 0.05) == pytest.approx(0, abs=0.3)
    assert factor == pytest.approx(2, rel=0.3)
