"""Objectives: the score of a measurement that a search maximises, beside the physical rate.

The rate is always samples per second: numerics, ceilings, memory, telemetry and a burst's own timing use it. Code that
decides which config is better (search, race, warm start, result, reports) uses the score.

To add an objective, declare it here, add it to `OBJECTIVES`, and add its name to the option in `sessions/options.py`.
If it needs a figure that no burst measures yet, add that to `records.py` or `telemetry_summary.py`, and to the
telemetry that reads it. Only two places ask which objective it is: the options of the command line, and the check that
refuses an objective which this machine cannot measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from autotune.errors import UsageError
from autotune.measuring.records import Measurement
from autotune.measuring.statistics import Interval, ratio_interval
from autotune.units import format_rate

ENERGY_TURN_SECONDS = 0.5
"""NVML's energy counter moves ten times a second (on an H100, in steps of 12.5 J at 125 W). In turns of 0.2 s, the
joules of a block scattered by a quarter."""


@dataclass(frozen=True)
class Objective:
    """What makes one config better than another."""

    name: str  # in result files and studies
    unit: str  # for display
    # above 0, the higher the better, in proportion to the rate where all else is equal; None if a figure is missing
    score: Callable[[Measurement], float | None]
    format: Callable[[float], str]  # a score with its unit
    # of each block; their noise is the score's noise
    costs: Callable[[Measurement], Sequence[float] | None] = lambda measured: measured.block_seconds
    turn_seconds: float | None = None  # where the device's usual turn is too short for a counter
    # in samples per second: only then a duet ends once decided, and a search where computing is the limit
    is_rate: bool = False

    @property
    def gain(self) -> str:
        """What a ratio of scores is called: ``speed-up``, ``gain in samples per joule``."""
        return "speed-up" if self.is_rate else f"gain in {self.name.replace('_', ' ')}"

    def interval(self, measured: Measurement) -> Interval:
        """Bootstrap interval of a measurement's score: blocks are resampled with their costs."""
        costs = self.costs(measured) or measured.block_seconds
        samples = [block.samples for block in measured.blocks]
        each = (self.score(measured) or 0.0) * math.fsum(costs) / sum(samples)
        low, high = ratio_interval(samples, [max(cost, 1e-12) for cost in costs])
        return Interval(each * low, each * high)

    def bare(self, score: float) -> str:
        """A score without its unit, for places that show the unit elsewhere."""
        return self.format(score).removesuffix(f" {self.unit}")


SAMPLES_PER_SECOND = Objective(
    "samples_per_second", "samples/s", lambda measured: measured.samples_per_second, format_rate, is_rate=True
)


def _samples_per_joule(measured: Measurement) -> float | None:
    joules = math.fsum(measured.block_joules or ())
    score = sum(block.samples for block in measured.blocks) / joules if joules > 0 else math.inf
    return score if score < math.inf else None  # a broken file may hold hardly any joules


SAMPLES_PER_JOULE = Objective(
    "samples_per_joule",
    "samples/J",
    _samples_per_joule,
    lambda score: f"{score:.3g} samples/J",
    costs=lambda measured: measured.block_joules,
    turn_seconds=ENERGY_TURN_SECONDS,
)
OBJECTIVES: Sequence[Objective] = (SAMPLES_PER_SECOND, SAMPLES_PER_JOULE)
SECONDS_PER_HOUR = 3600.0


def per_dollar(samples_per_second: float, dollars_per_hour: float) -> float:
    """Samples per dollar, from a rate and the machine's hourly price."""
    return samples_per_second * SECONDS_PER_HOUR / dollars_per_hour


def objective_named(name: str) -> Objective:
    """An objective by its name.

    Raises:
        UsageError: No objective has that name; a newer autotune may have it.
    """
    match = next((objective for objective in OBJECTIVES if objective.name == name), None)
    if match is None:
        names = ", ".join(objective.name for objective in OBJECTIVES)
        raise UsageError(f"expected one of the objectives {names}, got {name!r}; a newer autotune may have it")
    return match


def _known(name: str) -> str:
    try:
        return objective_named(name).name
    except UsageError as error:
        raise ValueError(str(error)) from None


ObjectiveName = Annotated[str, AfterValidator(_known)]
"""An objective in a file; one that this version does not know is refused."""
