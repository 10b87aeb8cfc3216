"""What the machine did while a burst was timed: the telemetry's summary, and whether it disturbed the figure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

FOREIGN_CPU_LIMIT = 0.1
IDLE_CPU_LIMIT = 0.1
STOLEN_CPU_LIMIT = 0.05
FOREIGN_GPU_LIMIT = 0.05
CLOCK_DROP_LIMIT = 0.15
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
"""Clock limits that are no part of normal work; a power cap (`sw_power_cap`) is, under full load."""


class TelemetrySummary(BaseModel):
    """A summary over the timed part of a burst; fractions lie in [0, 1]; None: could not be read, or no such device."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    seconds: float = Field(ge=0, description="how long it watched")
    cpu_fraction: float | None = Field(default=None, description="of all CPUs, taken by this run")
    foreign_cpu_fraction: float | None = Field(default=None, description="of all CPUs, taken by other processes")
    idle_cpu_fraction: float | None = None
    stolen_cpu_fraction: float | None = Field(default=None, description="of all CPUs, taken by other virtual machines")
    gpu_utilization_fraction: float | None = Field(default=None, description="share of time in which a kernel ran")
    sm_activity_fraction: float | None = Field(default=None, description="from Hopper on")
    tensor_activity_fraction: float | None = Field(default=None, description="from Hopper on")
    sm_clock_mhz: float | None = Field(default=None, description="median")
    sm_clock_min_mhz: float | None = None
    temperature_celsius: float | None = Field(default=None, description="highest")
    clock_limits: tuple[str, ...] = Field(default=(), description="what held the clocks down, as NVML names it")
    power_watts: float | None = Field(default=None, description="mean")
    power_min_watts: float | None = None
    power_max_watts: float | None = None
    energy_joules: float | None = None
    foreign_gpu_processes: int | None = None
    foreign_gpu_memory_bytes: int | None = None
    foreign_gpu_fraction: float | None = Field(default=None, description="SM share of other processes")
    device_allocated_bytes: int | None = Field(default=None, description="peak, by torch")
    device_context_bytes: int | None = Field(default=None, description="used on the GPU beyond torch's reserve")
    allocator_retries: int | None = Field(default=None, description="allocations that first had to free the cache")
    fragmented_bytes: int | None = Field(default=None, description="reserved in pieces that were too small, peak")

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


def merged(parts: Sequence[TelemetrySummary]) -> TelemetrySummary | None:
    """Several spans as one: means weighted by their seconds, sums, and the extremes; None without any."""
    if not parts:
        return None
    values: dict[str, Any] = {}
    for name in TelemetrySummary.model_fields:
        known = [(part.seconds, getattr(part, name)) for part in parts if getattr(part, name) not in {None, ()}]
        if not known:
            continue
        figures = [value for _, value in known]
        if name == "clock_limits":
            values[name] = tuple(dict.fromkeys(limit for limits in figures for limit in limits))
        elif name in {"seconds", "energy_joules", "allocator_retries"}:
            values[name] = sum(figures)
        elif "_min_" in name:
            values[name] = min(figures)
        elif "_max_" in name or name.endswith(("_bytes", "_celsius", "_processes")):
            values[name] = max(figures)
        else:
            total = sum(seconds for seconds, _ in known)
            values[name] = (
                sum(seconds * value for seconds, value in known) / total if total else statistics.fmean(figures)
            )
    return TelemetrySummary.model_validate(values)
