"""What a search maximises: the score of a measurement, beside the physical rate.

The rate is always samples per second: numerics, ceilings, memory, telemetry and a burst's own timing ask for it.
Whoever decides which config is better (search, race, warm start, result, reports) asks for the score.

To add an objective: (1) declare it here and add it to `OBJECTIVES`, and its name to those of the option in
`commands/options.py`; (2) where it needs a figure that no burst measures
yet, add that to `records.py` or `telemetry_summary.py`, and to the telemetry that reads it; only the
options of the command line, and what refuses one that this machine cannot tell, ask which objective it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.errors import UsageError
from autotune.measuring.records import Measurement
from autotune.measuring.statistics import Interval, ratio_interval
from autotune.units import format_rate

ENERGY_TURN_SECONDS = 0.5
"""NVML's counter of energy moves ten times a second (an H100's, in steps of 12.5 J at 125 W): in turns of 0.2 s the
joules of a block scattered by a quarter."""


@dataclass(frozen=True)
class Objective:
    """What makes one config better than another.

    Attributes:
        name: As it is stored in result files and studies.
        unit: Of the score, for a person.
        score: Of a measurement: above 0, the higher the better, and in proportion to the rate where all else is equal;
            None where the measurement lacks what it is made of.
        format: A score with its unit.
        costs: What each block of a measurement cost, whose noise is the score's; its seconds unless said otherwise.
        turn_seconds: How long a side trains at a time, where what suits the device is too short for a counter.
        is_rate: Whether a score is samples per second: only then does a duet end as soon as it is decided, and a search
            when computing is the limit.
    """

    name: str
    unit: str
    score: Callable[[Measurement], float | None]
    format: Callable[[float], str]
    costs: Callable[[Measurement], Sequence[float] | None] = lambda measured: measured.block_seconds
    turn_seconds: float | None = None
    is_rate: bool = False

    def interval(self, measured: Measurement) -> Interval:
        """Bootstrap interval of a score that there is, over blocks by what they cost."""
        costs = self.costs(measured) or measured.block_seconds
        samples = [block.samples for block in measured.blocks]
        each = (self.score(measured) or 0.0) * math.fsum(costs) / sum(samples)
        low, high = ratio_interval(samples, [max(cost, 1e-12) for cost in costs])
        return Interval(each * low, each * high)

    def bare(self, score: float) -> str:
        """A score where its unit is told elsewhere."""
        return self.format(score).removesuffix(f" {self.unit}")


SAMPLES_PER_SECOND = Objective(
    "samples_per_second", "samples/s", lambda measured: measured.samples_per_second, format_rate, is_rate=True
)


def _samples_per_joule(measured: Measurement) -> float | None:
    joules = measured.block_joules
    return sum(block.samples for block in measured.blocks) / math.fsum(joules) if joules else None


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
    """Samples for a dollar, at a rate on a machine of a price."""
    return samples_per_second * SECONDS_PER_HOUR / dollars_per_hour


def objective_named(name: str) -> Objective:
    """An objective by its name.

    Raises:
        UsageError: There is none of that name: a newer autotune may know it.
    """
    found = next((objective for objective in OBJECTIVES if objective.name == name), None)
    if found is None:
        known = ", ".join(objective.name for objective in OBJECTIVES)
        raise UsageError(f"expected one of the objectives {known}, got {name!r}; a newer autotune may have it")
    return found
