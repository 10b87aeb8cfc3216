"""What NVML reports about GPUs while a burst is timed: sampled figures, and counters read at both ends.

Every figure is read separately: one that a card does not support is None, and does not affect the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import psutil

from autotune.bursts.hosts.cleanup import RUN_VARIABLE

Value = TypeVar("Value")
SAMPLE_SECONDS = 0.2
_SUMMED = {"power_watts", "power_min_watts", "power_max_watts", "energy_joules", "foreign_gpu_memory_bytes"}
_AVERAGED = {"gpu_utilization_fraction", "sm_activity_fraction", "tensor_activity_fraction", "sm_clock_mhz"}
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
        nvml: The initialised `pynvml` module.
        uuid: In NVML's form.
        ours: Returns the ids of this run's processes, other bursts included.
        of_all: Whether all samples are trained on it; else its energy is not reported.

    Process ids show which processes are foreign, except in a container, where NVML shows the host's ids. There a GPU is
    known to be free of others only if no process held it when this object was made; else the figures are None.
    """

    def __init__(self, nvml: Any, uuid: str, ours: Callable[[], Iterable[int]], *, of_all: bool = True) -> None:
        self._nvml = nvml
        self._of_all = of_all
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._find_ours = ours
        self._ours = {os.getpid()}
        self._was_held = bool(self._processes())
        self._samples: defaultdict[str, list[float]] = defaultdict(list)
        self._limits: set[str] = set()
        self._energy: float | None = None
        self._gpm: Any = None
        self._began_microseconds = 0

    def begin(self) -> None:
        """Begins the timed part: samples from here on count."""
        self._samples.clear()
        self._limits.clear()
        self._began_microseconds = int(time.time() * 1e6)
        self._energy = self._energy_joules()
        self._free(self._gpm)
        self._gpm = self._read(self._gpm_sample)

    def sample(self) -> None:
        """Samples the figures that have no counter."""
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
        """Figures of the timed part, by the field names of `TelemetrySummary`."""
        energy = self._energy_joules()
        clocks, powers = self._samples["clock"], self._samples["power"] if self._of_all else []
        sm, tensor = self._gpm_fractions()
        foreign = self._foreign()
        sizes = [size for size in (foreign or {}).values() if size is not None]
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
            "energy_joules": energy - self._energy if energy is not None and self._energy is not None else None,
            "foreign_gpu_processes": len(foreign) if foreign is not None else None,
            "foreign_gpu_memory_bytes": sum(sizes) if sizes or foreign == {} else None,
            "foreign_gpu_fraction": self._foreign_fraction(foreign),
        }

    def used_bytes(self) -> int | None:
        """Memory in use on the whole GPU now."""
        return self._read(lambda: int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used))

    def _energy_joules(self) -> float | None:
        """Energy of the GPU since its driver was loaded; None if other GPUs train as well."""
        if not self._of_all:
            return None
        return self._read(lambda: float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000))

    def _processes(self) -> list[Any] | None:
        """Processes that compute on the GPU now; None where the driver does not report them."""
        return self._read(lambda: list(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)))

    def _foreign(self) -> dict[int, int | None] | None:
        """The memory of each foreign process that holds the GPU, by its id; None where these cannot be identified."""
        processes = self._processes()
        if not processes:  # a process of ours holds the GPU: a driver that lists none does not report any
            return None
        now = {process.pid: process.usedGpuMemory for process in processes}
        if not now.keys() <= self._ours:  # finding ours reads all processes: not again for a known partner
            self._ours = {*self._find_ours()}
        if self._ours.isdisjoint(now):
            return None if self._was_held else {}
        return {pid: size for pid, size in now.items() if pid not in self._ours}

    def _foreign_fraction(self, foreign: Mapping[int, int | None] | None) -> float | None:
        """SM share of the foreign processes since `begin`; 0 if there are none."""
        if not foreign:
            return None if foreign is None else 0.0
        samples = self._read(lambda: self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._began_microseconds))
        if samples is None:
            return None
        shares: defaultdict[int, list[float]] = defaultdict(list)
        for sample in samples:
            shares[sample.pid].append(sample.smUtil / 100)
        return min(1.0, sum(statistics.fmean(shares[pid]) for pid in shares.keys() & foreign.keys()))

    def _gpm_sample(self) -> Any:
        """A sample of the performance-monitoring counters (Hopper and later), or None."""
        if not self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            return None
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample

    def _gpm_fractions(self) -> tuple[float | None, float | None]:
        """SM and tensor-core activity between `begin` and now."""
        before, self._gpm = self._gpm, None  # freed once: a second time, the driver's library ends the process
        after = self._read(self._gpm_sample)
        if before is None or after is None:
            self._free(before, after)
            return None, None
        nvml = self._nvml

        def compute() -> tuple[float | None, float | None]:
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = 2
            request.sample1, request.sample2 = before, after
            request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            request.metrics[1].metricId = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
            nvml.nvmlGpmMetricsGet(request)
            return _gpm_share(request.metrics[0]), _gpm_share(request.metrics[1])

        fractions = self._read(compute)
        self._free(before, after)
        return fractions or (None, None)

    def _free(self, *samples: Any) -> None:
        """Frees counter samples."""
        for sample in samples:
            if sample is not None:
                with contextlib.suppress(self._nvml.NVMLError):
                    self._nvml.nvmlGpmSampleFree(sample)

    def _read(self, read: Callable[[], Value]) -> Value | None:
        """A figure, or None where this card or driver does not give it."""
        try:
            return read()
        except (self._nvml.NVMLError, AttributeError, ctypes.ArgumentError):
            return None


def _gpm_share(metric: Any) -> float | None:
    """A metric's value as a share; None if its own status is an error, or it is no number."""
    return metric.value / 100 if not metric.nvmlReturn and math.isfinite(metric.value) else None


def processes_of_run() -> set[int]:
    """Ids of the command that this process works for, and of all processes that the command has started."""
    family = {os.getpid()}
    with contextlib.suppress(psutil.Error, OSError):
        for ancestor in psutil.Process().parents():
            family.add(ancestor.pid)
            if RUN_VARIABLE not in ancestor.environ():  # the command itself, above the processes that it marks
                return family | {child.pid for child in ancestor.children(recursive=True)}
    return family


class GpuWatch:
    """Watches GPUs from its own thread, block by block.

    Args:
        uuids: UUIDs of NVIDIA GPUs; those that do not answer are left out.
        ours: See `GpuTelemetry`.
        of_all: Whether all samples are trained on them.
    """

    def __init__(self, uuids: Sequence[str], ours: Callable[[], Iterable[int]], *, of_all: bool = True) -> None:
        self._gpus: list[GpuTelemetry] = []
        for uuid in uuids:
            import pynvml

            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._gpus.append(GpuTelemetry(pynvml, uuid, ours, of_all=of_all))
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        if self._gpus:
            threading.Thread(target=self._watch, name="autotune-gpus", daemon=True).start()

    def used_bytes(self) -> int | None:
        """Memory in use on the first GPU now; None if that is not known."""
        return self._gpus[0].used_bytes() if self._gpus else None

    def begin(self) -> None:
        """Begins a block."""
        with self._lock:
            for gpu in self._gpus:
                gpu.begin()

    def end(self) -> dict[str, Any]:
        """Figures of the block, as those of one GPU, by the field names of `TelemetrySummary`."""
        with self._lock:
            return together([gpu.end() for gpu in self._gpus]) if self._gpus else {}

    def close(self) -> None:
        """Ends watching."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            with self._lock:
                for gpu in self._gpus:
                    gpu.sample()


def together(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of several GPUs as those of one: power, energy and foreign memory add up, and all else is the worst's.

    Activity and clocks are means. A sum of which a part is unknown is unknown.
    """
    figures: dict[str, Any] = {
        "clock_limits": tuple(sorted({limit for part in parts for limit in part["clock_limits"]}))
    }
    for name in parts[0].keys() - figures.keys():
        readings = [part[name] for part in parts if part[name] is not None]
        if not readings:
            figures[name] = None
        elif name in _SUMMED:
            figures[name] = sum(readings) if len(readings) == len(parts) else None
        elif name == "sm_clock_min_mhz":
            figures[name] = min(readings)
        elif name in _AVERAGED:
            figures[name] = statistics.fmean(readings)
        else:
            figures[name] = max(readings)
    return figures


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
