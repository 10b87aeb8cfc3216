"""The summary of telemetry while a burst was timed, and whether something disturbed the figure."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from autotune.stored import Figure, Seconds, Stored, Whole
from autotune.timing.usage import lost_fraction

FOREIGN_CPU_LIMIT = 0.1
"""Share of the CPUs that other programs may take before a burst is marked and a span may be left out. Not tuned, nor
are the limits below: the background work of a quiet desktop stays under them."""
NOTABLY_MORE = 0.05
"""Share of the CPUs that other load may take beyond the median of all spans. Not tuned."""
TICK_SECONDS = 0.01
"""Unit in which Linux counts the time of each processor."""
STOLEN_CPU_LIMIT = 0.05
FOREIGN_GPU_LIMIT = 0.05
CLOCK_DROP_LIMIT = 0.15
_SUMMED = {"seconds", "energy_joules", "allocator_retries"}
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
"""Clock limits that do not belong to normal work; a power cap (`sw_power_cap`) does, under full load."""


class TelemetrySummary(Stored):
    """A summary over the timed part of a burst; fractions lie in [0, 1]; None: not readable, or no such device."""

    seconds: Seconds = Field(description="length of the watched span")
    cpu_fraction: Figure | None = Field(default=None, description="of all CPUs, taken by this run")
    foreign_cpu_fraction: Figure | None = Field(default=None, description="of all CPUs, taken by other processes")
    idle_cpu_fraction: Figure | None = None
    stolen_cpu_fraction: Figure | None = Field(default=None, description="of all CPUs, taken by other virtual machines")
    gpu_utilization_fraction: Figure | None = Field(default=None, description="share of time in which a kernel ran")
    sm_activity_fraction: Figure | None = Field(default=None, description="from Hopper on")
    tensor_activity_fraction: Figure | None = Field(default=None, description="from Hopper on")
    sm_clock_mhz: Figure | None = Field(default=None, description="median")
    sm_clock_min_mhz: Figure | None = None
    temperature_celsius: float | None = Field(default=None, ge=-300, le=1e4, description="highest")
    clock_limits: tuple[str, ...] = Field(default=(), description="what held the clocks down, as NVML names it")
    power_watts: Figure | None = Field(default=None, description="mean")
    power_min_watts: Figure | None = None
    power_max_watts: Figure | None = None
    energy_joules: Figure | None = None
    foreign_gpu_processes: Whole | None = None
    foreign_gpu_memory_bytes: Whole | None = None
    foreign_gpu_fraction: Figure | None = Field(default=None, description="SM share of other processes")
    device_allocated_bytes: Whole | None = Field(default=None, description="peak, by torch")
    device_context_bytes: Whole | None = Field(default=None, description="used on the GPU beyond torch's reserve")
    allocator_retries: Whole | None = Field(default=None, description="allocations that first had to free the cache")
    fragmented_bytes: Whole | None = Field(default=None, description="reserved in pieces that were too small, peak")

    @property
    def device_activity_fraction(self) -> float | None:
        """How busy the GPU was: its multiprocessors where reported, else the share of time with a kernel."""
        return self.sm_activity_fraction if self.sm_activity_fraction is not None else self.gpu_utilization_fraction

    @property
    def taken_fraction(self) -> float:
        """Share of the CPUs that other programs and virtual machines took from this run."""
        return (self.stolen_cpu_fraction or 0.0) + self._lost_fraction

    @property
    def _lost_fraction(self) -> float:
        """Share of the CPUs that other processes took from this run; what they take of idle CPUs does not count."""
        return lost_fraction(self.foreign_cpu_fraction or 0.0, self.idle_cpu_fraction)

    @property
    def disturbance(self) -> str | None:
        """What disturbed the figure, in a few words; None when nothing notable did."""
        if self._lost_fraction > FOREIGN_CPU_LIMIT:
            return f"other processes took {self._lost_fraction:.0%} of the CPUs"
        if (self.stolen_cpu_fraction or 0.0) > STOLEN_CPU_LIMIT:
            return f"other virtual machines took {self.stolen_cpu_fraction:.0%} of the CPUs"
        if (self.foreign_gpu_fraction or 0.0) > FOREIGN_GPU_LIMIT:
            return f"other processes took {self.foreign_gpu_fraction:.0%} of the GPU"
        if slowdowns := [name for name in self.clock_limits if name in SLOWDOWNS]:
            return f"the GPU's clocks were held down ({', '.join(slowdowns)})"
        if self.sm_clock_mhz and self.sm_clock_min_mhz:
            drop = 1 - self.sm_clock_min_mhz / self.sm_clock_mhz
            if drop > CLOCK_DROP_LIMIT:
                return f"the GPU's clock dropped by {drop:.0%}"
        return None


def bearable(taken: Sequence[float], span_seconds: float = math.inf) -> list[int]:
    """Indices of the spans in which other load did not take notably more CPU than usual: half, at least.

    The choice depends on other load only, never on how fast training was.

    Args:
        taken: `TelemetrySummary.taken_fraction` of each span.
        span_seconds: Length of a span. In short spans, a tick that was counted in the wrong one is no disturbance.
    """
    if not taken:
        return []
    miscounted = 2 * TICK_SECONDS / (span_seconds * (os.cpu_count() or 1))
    most = max(FOREIGN_CPU_LIMIT, statistics.median(taken) + NOTABLY_MORE) + miscounted
    return [index for index, share in enumerate(taken) if share <= most]


def merged(parts: Sequence[TelemetrySummary]) -> TelemetrySummary | None:
    """Merges spans into one: means weighted by seconds, sums, and extremes; None without any span.

    A sum needs a value from each part: the energy of some parts cannot be compared with the time of all.
    """
    if not parts:
        return None
    values: dict[str, Any] = {"clock_limits": tuple(sorted({limit for part in parts for limit in part.clock_limits}))}
    for name in TelemetrySummary.model_fields.keys() - values.keys():
        readings = [(part.seconds, figure) for part in parts if (figure := getattr(part, name)) is not None]
        figures = [figure for _, figure in readings]
        if name in _SUMMED:
            values[name] = sum(figures) if len(figures) == len(parts) else None
        elif not figures:
            continue
        elif "_min_" in name:
            values[name] = min(figures)
        elif "_max_" in name or name.endswith(("_bytes", "_celsius", "_processes")):
            values[name] = max(figures)
        else:
            total = sum(seconds for seconds, _ in readings)
            values[name] = (
                sum(seconds * figure for seconds, figure in readings) / total if total else statistics.fmean(figures)
            )
    return TelemetrySummary.model_validate(values)
