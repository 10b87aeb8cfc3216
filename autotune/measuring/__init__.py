"""Records of measurements, and the figures derived from them; this package imports no torch and starts no process.

A `Burst` runs a `Point` and ends in an `Outcome`. A burst that ends well has a `Measurement`, which an `Objective`
scores. A `Pair` compares a candidate with the incumbent; a `Speedup` is the ratio of two scores over several `Rounds`
of fresh processes. The other modules are `numerics` (does a config still train the same thing?), `memory_model` and
`telemetry_summary`. May import `knobs` and what lies below. Start with `records`.
"""

from autotune.measuring.growth import Growth, Held, Look, SideName, slope
from autotune.measuring.memory_model import Line, MemoryModel
from autotune.measuring.numerics import (
    CAVEAT,
    FEWEST_STEPS,
    MOST_STEPS,
    Agreement,
    Numerics,
    NumericsGuard,
    Trace,
    judge_agreement,
)
from autotune.measuring.objective import (
    SAMPLES_PER_JOULE,
    SAMPLES_PER_SECOND,
    SECONDS_PER_HOUR,
    Objective,
    ObjectiveName,
    objective_named,
    per_dollar,
)
from autotune.measuring.pairs import APART_ERROR, Pair, pair_apart, pair_of
from autotune.measuring.progress import Progress
from autotune.measuring.ratios import Scatter, block_error, paired, warm_up_length
from autotune.measuring.records import (
    Block,
    Burst,
    Headroom,
    Measurement,
    Operator,
    Outcome,
    Point,
    Profile,
    SampleCost,
    SamplePart,
    Synchronisation,
    compiler_text,
    pool,
    worst,
)
from autotune.measuring.speedup import PROCESS_SPREAD, Round, Rounds, Speedup, Uninterrupted
from autotune.measuring.statistics import Interval, KnownInterval
from autotune.measuring.telemetry_summary import FOREIGN_CPU_LIMIT, SLOWDOWNS, TelemetrySummary, bearable, merged

__all__ = [
    "APART_ERROR", "CAVEAT", "FEWEST_STEPS", "FOREIGN_CPU_LIMIT", "MOST_STEPS", "PROCESS_SPREAD",
    "SAMPLES_PER_JOULE", "SAMPLES_PER_SECOND", "SECONDS_PER_HOUR", "SLOWDOWNS", "Agreement", "Block", "Burst",
    "Growth", "Headroom", "Held", "Interval", "KnownInterval", "Line", "Look", "Measurement", "MemoryModel",
    "Numerics", "NumericsGuard", "Objective", "ObjectiveName", "Operator", "Outcome", "Pair", "Point", "Profile",
    "Progress", "Round", "Rounds", "SampleCost", "SamplePart", "Scatter", "SideName", "Speedup", "Synchronisation",
    "TelemetrySummary", "Trace", "Uninterrupted", "bearable", "block_error", "compiler_text", "judge_agreement",
    "merged", "objective_named", "pair_apart", "pair_of", "paired", "per_dollar", "pool", "slope", "warm_up_length",
    "worst",
]  # fmt: skip
