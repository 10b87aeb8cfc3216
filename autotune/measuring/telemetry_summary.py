"""What the machine did while a burst was timed: the telemetry's summary, and whether it disturbed the figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from autotune.stored import Figure, Seconds, Stored, Whole

FOREIGN_CPU_LIMIT = 0.1
IDLE_CPU_LIMIT = 0.1
STOLEN_CPU_LIMIT = 0.05
FOREIGN_GPU_LIMIT = 0.05
CLOCK_DROP_LIMIT = 0.15
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
"""Clock limits that are no part of normal work; a power cap (`sw_power_cap`) is, under full load."""


class TelemetrySummary(Stored):
    """A summary over the timed part of a burst; fractions lie in [0, 1]; None: could not be read, or no such device."""

    seconds: Seconds = Field(description="how long it watched")
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
        """How busy the GPU was: its multiprocessors where that is reported, else the share of time with a kernel."""
        return self.sm_activity_fraction if self.sm_activity_fraction is not None else self.gpu_utilization_fraction

    @property
    def disturbance(self) -> str | None:
        """What disturbed the figure, in a few words; None when nothing notable did."""
        foreign, idle = self.foreign_cpu_fraction or 0.0, self.idle_cpu_fraction
        # Others may compute as they like where CPUs are left over for them.
        if foreign > FOREIGN_CPU_LIMIT and (idle is None or idle < IDLE_CPU_LIMIT + foreign):
            return f"other processes took {foreign:.0%} of the CPUs"
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


_MERGED_BY: tuple[tuple[Callable[[Sequence[Any]], object], tuple[str, ...]], ...] = (
    (max, ("temperature_celsius", "power_max_watts", "foreign_gpu_processes", "foreign_gpu_memory_bytes")),
    (max, ("device_allocated_bytes", "device_context_bytes", "fragmented_bytes")),
    (min, ("sm_clock_min_mhz", "power_min_watts")),
)
_SUMMED = ("energy_joules", "allocator_retries")
"""These are known only where every burst knows its own: a sum of some would be set against the time of all."""
_AVERAGED = (
    "cpu_fraction", "foreign_cpu_fraction", "idle_cpu_fraction", "stolen_cpu_fraction", "gpu_utilization_fraction",
    "sm_activity_fraction", "tensor_activity_fraction", "sm_clock_mhz", "power_watts", "foreign_gpu_fraction",
)  # fmt: skip


def merged(summaries: Sequence[TelemetrySummary]) -> TelemetrySummary | None:
    """Several bursts' telemetry as one: means by their seconds, the worst of peaks, sums; None where there is none."""
    if not summaries:
        return None

    def known(name: str) -> list[tuple[Any, float]]:
        """The figures of a field that could be read, each with the seconds that it stands for."""
        values = [(getattr(one, name), one.seconds) for one in summaries]
        return [(value, seconds) for value, seconds in values if value is not None]

    figures: dict[str, object] = {
        "seconds": math.fsum(one.seconds for one in summaries),
        "clock_limits": tuple(sorted({limit for one in summaries for limit in one.clock_limits})),
    }
    for name in _AVERAGED:
        if pairs := known(name):
            whole = math.fsum(seconds for _, seconds in pairs)
            weighted = [value * (seconds / whole if whole else 1 / len(pairs)) for value, seconds in pairs]
            figures[name] = math.fsum(weighted)
    for pick, names in _MERGED_BY:
        figures |= {name: pick([value for value, _ in pairs]) for name in names if (pairs := known(name))}
    for name in _SUMMED:
        pairs = known(name)
        figures[name] = sum(value for value, _ in pairs) if len(pairs) == len(summaries) else None
    return TelemetrySummary.model_validate(figures)
