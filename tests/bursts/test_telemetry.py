"""Telemetry: who used the processors, what the GPU did, and how much memory the tree took."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from autotune.bursts.gpu_telemetry import GpuTelemetry, processes_of_run
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Point
from autotune.timing.usage import UsageWatch, processes, shares
from tests.conftest import RunnerOf

ONE_THREAD = Point(config=TrainConfig(num_threads=1))
PLAN = BurstPlan(measure_seconds=1.0)


def seconds(at: float, *, busy: float, idle: float, own: float) -> dict[str, float]:
    """A reading of the CPU counters."""
    return {"seconds": at, "cpu_fraction": own, "foreign_cpu_fraction": busy - own, "idle_cpu_fraction": idle}


def test_cpu_time_that_is_not_ours_is_foreign() -> None:
    """Of what all CPUs did, our own part is taken away; the rest others did."""
    cpus = os.cpu_count() or 1
    after = seconds(1.0, busy=0.75 * cpus, idle=0.25 * cpus, own=0.5 * cpus)
    fractions = shares(seconds(0.0, busy=0, idle=0, own=0), after)
    assert fractions["cpu_fraction"] == pytest.approx(0.5)
    assert fractions["foreign_cpu_fraction"] == pytest.approx(0.25)
    assert fractions["idle_cpu_fraction"] == pytest.approx(0.25)


def test_rounding_of_the_counters_never_shows_as_negative_load() -> None:
    """Counters in ticks can put our own time above everyone's: that is no foreign load."""
    fractions = shares(seconds(0.0, busy=0, idle=0, own=0), seconds(1.0, busy=0.5, idle=1, own=0.51))
    assert fractions["foreign_cpu_fraction"] == 0.0


def test_the_memory_of_children_counts() -> None:
    """The peak holds what a child allocated while it ran."""
    with UsageWatch(None, lambda _: None, peaks=True) as telemetry:
        before = telemetry.peak_bytes() or 0
        code = "import time; block = bytearray(200_000_000); block[::4096] = b'x' * len(block[::4096]); time.sleep(1.5)"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert (telemetry.peak_bytes() or 0) > before + 150_000_000


def test_passing_the_limit_is_told() -> None:
    """The one who asked learns what was seen when the tree takes more than the limit."""
    seen: list[int] = []
    with UsageWatch(1000, seen.append):
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            time.sleep(0.05)
    assert seen
    assert seen[0] > 1000


def test_what_the_allocator_asked_again_counts_in_the_timed_part() -> None:
    """Not what it did before, while memory filled; and each part counts its own."""
    counter = iter([2, 5, 6, 6, 6])  # when it is made, then at both ends of two parts
    with UsageWatch(None, lambda _: None, counters={"allocator_retries": lambda: next(counter)}) as telemetry:
        telemetry.begin()
        first = telemetry.end()
        telemetry.begin()
        second = telemetry.end()
    assert (first["allocator_retries"], second["allocator_retries"]) == (1, 0)
    with UsageWatch(None, lambda _: None, counters={"allocator_retries": lambda: None}) as telemetry:
        telemetry.begin()
        assert telemetry.end()["allocator_retries"] is None


def run_burst(runner_of: RunnerOf) -> Burst:
    """One burst of the tiny workload on one thread."""
    return runner_of("tests.workloads.tiny:build").run(ONE_THREAD, PLAN, 30)


def test_a_burst_beside_a_busy_process_is_marked(runner_of: RunnerOf) -> None:
    """A second program that burns all cores is seen, and named as the cause."""
    code = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(os.cpu_count() or 1)]
    try:
        burst = run_burst(runner_of)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert burst.ok
    assert "other processes" in (burst.disturbance or "")


@pytest.mark.alone
def test_a_burst_alone_is_not_marked(runner_of: RunnerOf) -> None:
    """Without other load there is no mark; tried several times, since the machine may be shared."""
    assert any(run_burst(runner_of).disturbance is None for _ in range(6))


class FakeNvml:
    """NVML's answers for a card at work, as its documentation has them: MHz, milliwatts, millijoules, per cent."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_ANY_TENSOR_UTIL = 1, 2, 5
    nvmlClocksEventReasonSwPowerCap, nvmlClocksThrottleReasonHwThermalSlowdown = 0x4, 0x40

    class NVMLError(Exception):
        """What the driver answers to a question that it cannot answer."""

    def __init__(self, *, hopper: bool = True, foreign: tuple[SimpleNamespace, ...] = ()) -> None:
        self.hopper = hopper
        self.processes = foreign
        self.energy = 1_000_000
        self.clocks = iter([1900, 1890, 1400, 1880])
        self.held: list[object] = []
        self.activity = (88.0, 41.0)

    def nvmlInit(self) -> None:
        """It is there."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> tuple[SimpleNamespace, ...]:
        return self.processes

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self.energy += 500_000
        return self.energy

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return next(self.clocks)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 71

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 250_000

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x44

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=process.pid, smUtil=30) for process in self.processes]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(used=3 * 2**30)

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> SimpleNamespace:
        if not self.hopper:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> object:
        self.held.append(object())
        return self.held[-1]

    def nvmlGpmSampleGet(self, handle: str, sample: object) -> object:
        return sample

    def nvmlGpmSampleFree(self, sample: object) -> None:
        self.held.remove(sample)  # the real one ends the process when a sample is freed twice

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:
        return SimpleNamespace(metrics=[SimpleNamespace(value=0.0, nvmlReturn=0) for _ in range(2)])

    def nvmlGpmMetricsGet(self, request: SimpleNamespace) -> None:
        request.metrics[0].value, request.metrics[1].value = self.activity


def watched(nvml: FakeNvml) -> dict[str, object]:
    """The figures after four samples."""
    gpu = GpuTelemetry(nvml, "GPU-1", processes)
    gpu.begin()
    for _ in range(4):
        gpu.sample()
    return gpu.end()


def test_the_gpus_figures_are_in_si_units() -> None:
    """Milliwatts, millijoules and per cent become watts, joules and fractions."""
    figures = watched(FakeNvml())
    assert figures["power_watts"] == 250
    assert figures["energy_joules"] == 500
    assert figures["gpu_utilization_fraction"] == pytest.approx(0.97)
    assert (figures["sm_activity_fraction"], figures["tensor_activity_fraction"]) == (0.88, 0.41)
    assert figures["temperature_celsius"] == 71
    assert (figures["sm_clock_mhz"], figures["sm_clock_min_mhz"]) == (1885, 1400)
    assert figures["clock_limits"] == ("hw_thermal_slowdown", "sw_power_cap")


def test_a_card_without_performance_counters_gives_the_rest() -> None:
    """Before Hopper, SM activity is None and costs no other figure."""
    figures = watched(FakeNvml(hopper=False))
    assert figures["sm_activity_fraction"] is None
    assert figures["power_watts"] == 250


def test_counter_samples_are_given_back() -> None:
    """Each once, however often a timed part begins and ends: who frees one twice ends the process."""
    nvml = FakeNvml()
    gpu = GpuTelemetry(nvml, "GPU-1", processes)
    for act in (gpu.begin, gpu.begin, gpu.end, gpu.end, gpu.begin, gpu.end):
        act()
    assert nvml.held == []


def test_a_counter_that_is_no_number_is_left_out() -> None:
    """Performance counters may be NaN right after they were opened."""
    nvml = FakeNvml()
    nvml.activity = (math.nan, 41.0)
    figures = watched(nvml)
    assert (figures["sm_activity_fraction"], figures["tensor_activity_fraction"]) == (None, 0.41)


def held_by(*pids: int) -> FakeNvml:
    """A card that these processes hold, 1 GiB each, with 30 % of it."""
    return FakeNvml(foreign=tuple(SimpleNamespace(pid=pid, usedGpuMemory=2**30) for pid in pids))


def test_other_programs_are_foreign_and_our_own_are_not() -> None:
    """The partner of a duet holds the GPU as well; who else does is counted, whenever it came."""
    nvml = held_by()
    gpu = GpuTelemetry(nvml, "GPU-1", lambda: {os.getpid(), 5})
    gpu.begin()
    nvml.processes = held_by(os.getpid(), 5, 7, 8).processes
    figures = gpu.end()
    assert figures["foreign_gpu_processes"] == 2
    assert figures["foreign_gpu_memory_bytes"] == 2 * 2**30
    assert figures["foreign_gpu_fraction"] == pytest.approx(0.6)


@pytest.mark.parametrize(("before", "told"), [((), 0), ((7,), None)])
def test_in_a_container_only_a_free_gpu_is_known_to_be_free(before: tuple[int, ...], told: int | None) -> None:
    """Ids are the host's there: whether 7 is ours cannot be told, and nothing is claimed."""
    nvml = held_by(*before)
    gpu = GpuTelemetry(nvml, "GPU-1", processes)
    gpu.begin()
    nvml.processes = held_by(*before, 4711).processes  # this process, as the host counts
    figures = gpu.end()
    assert figures["foreign_gpu_processes"] == told
    assert figures["foreign_gpu_fraction"] == told


def test_a_driver_that_lists_nobody_tells_nothing() -> None:
    """This process holds the GPU itself: who is missing from the list may have company that is missing too."""
    figures = watched(held_by())
    assert figures["foreign_gpu_processes"] is None
    assert figures["foreign_gpu_memory_bytes"] is None


def test_one_gpu_of_several_tells_no_energy() -> None:
    """The samples are those of all ranks: over one card's joules they would be several times too many."""
    gpu = GpuTelemetry(FakeNvml(), "GPU-1", processes, of_all=False)
    gpu.begin()
    gpu.sample()
    figures = gpu.end()
    assert (figures["energy_joules"], figures["power_watts"]) == (None, None)
    assert figures["temperature_celsius"] is not None


def test_a_run_knows_its_processes() -> None:
    """Those that a process of the run has started, and itself."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert {os.getpid(), child.pid} <= processes_of_run()
    finally:
        child.kill()
        child.wait()
