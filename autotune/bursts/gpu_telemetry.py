"""What NVML reports of one GPU while a burst is timed: sampled figures, and counters read at both ends.

Every figure is read on its own: what a card does not support is None and costs the others nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")
_LIMIT_NAMES = {
    "sw_power_cap": "nvmlClocksEventReasonSwPowerCap",
    "hw_slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "hw_thermal_slowdown": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "sw_thermal_slowdown": "nvmlClocksEventReasonSwThermalSlowdown",
    "hw_power_brake_slowdown": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
}


class GpuTelemetry:
    """Telemetry of one GPU.

    Args:
        nvml: The `pynvml` module, initialised, or an object like it.
        uuid: The GPU's UUID as NVML writes it.

    Processes that hold the GPU when this is made are foreign: ours has not opened it yet. (Process ids alone do not
    tell: in a container NVML shows those of the host.)
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        processes = self._read(lambda: list(nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))) or []
        self._foreign = {process.pid: process.usedGpuMemory for process in processes}
        self._samples: defaultdict[str, list[float]] = defaultdict(list)
        self._limits: set[str] = set()
        self._energy: float | None = None
        self._gpm: Any = None
        self._began_microseconds = 0

    def begin(self) -> None:
        """The timed part begins: samples from here on count."""
        self._samples.clear()
        self._limits.clear()
        self._began_microseconds = int(time.time() * 1e6)
        self._energy = self._energy_joules()
        self._gpm = self._read(self._gpm_sample)

    def sample(self) -> None:
        """Reads what has no counter."""
        nvml, handle = self._nvml, self._handle
        sources: dict[str, Callable[[], float]] = {
            "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "clock": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        }
        for name, read in sources.items():
            if (value := self._read(read)) is not None:
                self._samples[name].append(float(value))
        limits = self._read(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
        self._limits |= {name for name, flag in _LIMIT_NAMES.items() if limits & getattr(nvml, flag, 0)}

    def end(self) -> dict[str, Any]:
        """The timed part's figures, by the names of `TelemetrySummary`."""
        energy = self._energy_joules()
        clocks, powers = self._samples["clock"], self._samples["power"]
        sm, tensor = self._gpm_fractions()
        known = [size for size in self._foreign.values() if size is not None]
        return {
            "gpu_utilization_fraction": _mean(self._samples["utilization"]),
            "sm_activity_fraction": sm,
            "tensor_activity_fraction": tensor,
            "sm_clock_mhz": statistics.median(clocks) if clocks else None,
            "sm_clock_min_mhz": min(clocks, default=None),
            "temperature_celsius": max(self._samples["temperature"], default=None),
            "clock_limits": tuple(sorted(self._limits)),
            "power_watts": _mean(powers),
            "power_min_watts": min(powers, default=None),
            "power_max_watts": max(powers, default=None),
            "energy_joules": None if energy is None or self._energy is None else energy - self._energy,
            "foreign_gpu_processes": len(self._foreign),
            "foreign_gpu_memory_bytes": sum(known) if known or not self._foreign else None,
            "foreign_gpu_fraction": self._foreign_fraction(),
        }

    def used_bytes(self) -> int | None:
        """Memory in use on the whole GPU now."""
        return self._read(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def _energy_joules(self) -> float | None:
        """What the GPU has taken since its driver was loaded."""
        return self._read(lambda: float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000))

    def _foreign_fraction(self) -> float | None:
        """SM share of the foreign processes since `begin`; 0 when there are none."""
        if not self._foreign:
            return 0.0
        samples = self._read(lambda: self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._began_microseconds))
        if samples is None:
            return None
        shares: defaultdict[int, list[float]] = defaultdict(list)
        for sample in samples:
            shares[sample.pid].append(sample.smUtil / 100)
        return min(1.0, sum(statistics.fmean(shares[pid]) for pid in shares.keys() & self._foreign.keys()))

    def _gpm_sample(self) -> Any:
        """A sample of the performance-monitoring counters (Hopper and later), or None."""
        if not self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            return None
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample

    def _gpm_fractions(self) -> tuple[float | None, float | None]:
        """SM and tensor-core activity between `begin` and now."""
        before, after = self._gpm, self._read(self._gpm_sample)
        if before is None or after is None:
            return None, None
        nvml = self._nvml

        def compute() -> tuple[float, float]:
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = 2
            request.sample1, request.sample2 = before, after
            request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            request.metrics[1].metricId = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
            nvml.nvmlGpmMetricsGet(request)
            return request.metrics[0].value / 100, request.metrics[1].value / 100

        fractions = self._read(compute)
        for sample in (before, after):
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)
        return fractions or (None, None)

    def _read(self, read: Callable[[], Value]) -> Value | None:
        """A figure, or None where this card or driver does not give it."""
        try:
            return read()
        except (self._nvml.NVMLError, AttributeError, ctypes.ArgumentError):
            return None


def open_gpu_telemetry(uuid: str | None) -> GpuTelemetry | None:
    """Telemetry of an NVIDIA GPU; None without a UUID or a driver."""
    if uuid is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        return GpuTelemetry(pynvml, uuid)
    except pynvml.NVMLError:
        return None


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
