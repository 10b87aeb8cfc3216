"""Records of what was measured, and what is derived from them; no torch, no process.

A `Burst` runs a `Point` and ends in an `Outcome`, well with a `Measurement`. An `Objective` scores measurements, and a
`Speedup` is the ratio of two scores with its interval. Beside these: `numerics` (does it still train the same thing?),
`memory_model`, `profiles`, `telemetry_summary`.
"""

from autotune.measuring.objective import SAMPLES_PER_SECOND, Objective, objective_named
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point, pool
from autotune.measuring.speedup import Speedup, paired_speedup
from autotune.measuring.statistics import Interval

__all__ = [
    "SAMPLES_PER_SECOND", "Block", "Burst", "Interval", "Measurement", "Objective", "Outcome", "Point", "Speedup",
    "objective_named", "paired_speedup", "pool",
]  # fmt: skip
