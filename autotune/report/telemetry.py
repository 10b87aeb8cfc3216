"""What the machine did while baseline and answer were timed: the telemetry of both, side by side."""

from __future__ import annotations

from collections.abc import Callable

from autotune.measuring import Measurement, TelemetrySummary
from autotune.report.charts import Share
from autotune.results.result import Result
from autotune.units import format_bytes, format_seconds
from autotune.wording import percent

Words = Callable[[float], str]
SHARES = {
    "CPUs: this run": "cpu_fraction",
    "CPUs: other programs": "foreign_cpu_fraction",
    "CPUs: other virtual machines": "stolen_cpu_fraction",
    "CPUs: idle": "idle_cpu_fraction",
    "GPU: time with a kernel": "gpu_utilization_fraction",
    "GPU: multiprocessors": "sm_activity_fraction",
    "GPU: tensor cores": "tensor_activity_fraction",
    "GPU: other programs": "foreign_gpu_fraction",
}
WAITING = "waiting for data"
FIGURES: tuple[tuple[str, str, Words], ...] = (
    ("GPU clock, median", "sm_clock_mhz", "{:,.0f} MHz".format),
    ("GPU clock, lowest", "sm_clock_min_mhz", "{:,.0f} MHz".format),
    ("GPU temperature, highest", "temperature_celsius", "{:.0f} °C".format),
    ("power, mean", "power_watts", "{:.1f} W".format),
    ("power, lowest", "power_min_watts", "{:.1f} W".format),
    ("power, highest", "power_max_watts", "{:.1f} W".format),
    ("energy of the timed part", "energy_joules", "{:,.4g} J".format),
    ("other programs on the GPU", "foreign_gpu_processes", "{:d}".format),
    ("GPU memory of other programs", "foreign_gpu_memory_bytes", format_bytes),
    ("GPU memory allocated, peak", "device_allocated_bytes", format_bytes),
    ("GPU memory beyond torch's reserve", "device_context_bytes", format_bytes),
    ("allocator retries", "allocator_retries", "{:d}".format),
    ("GPU memory lost in fragments", "fragmented_bytes", format_bytes),
)
COSTS: tuple[tuple[str, str, Words], ...] = (
    ("device memory, peak", "device_memory_bytes", format_bytes),
    ("host memory, peak", "host_memory_bytes", format_bytes),
    ("process start", "start_seconds", format_seconds),
    ("build()", "build_seconds", format_seconds),
    ("warm-up", "warmup_seconds", format_seconds),
    ("compiling, of the warm-up", "compile_seconds", format_seconds),
    ("timed", "measure_seconds", format_seconds),
    ("restart of the loader at an epoch's end", "epoch_boundary_seconds", format_seconds),
    ("optimizer steps skipped by the GradScaler", "skipped_steps", "{:d}".format),
    ("loss of the last step", "final_loss", "{:.4g}".format),
    ("breaks of the compiled graph", "graph_breaks", "{:d}".format),
    ("parts compiled again", "recompiles", "{:d}".format),
)


def shares(result: Result) -> list[Share]:
    """All shares that were read on either side."""
    before, after = (_telemetry(side.measurement) for side in (result.baseline, result.best))
    waits = [
        side.measurement.data_wait_fraction if side.measurement else None for side in (result.baseline, result.best)
    ]
    found = [Share(WAITING, *waits)]
    found += [Share(label, _number(before, field), _number(after, field)) for label, field in SHARES.items()]
    return [share for share in found if share.before is not None or share.after is not None]


def rows(result: Result) -> list[tuple[str, str, str]]:
    """All that was read, as label, before and after; what neither side knows is left out."""
    sides = (result.baseline.measurement, result.best.measurement)
    telemetry = [_telemetry(side) for side in sides]
    # Without a device of its own, the device's memory is the host's.
    same = {"device_memory_bytes"} if result.constraints.device == "cpu" else set()
    found = [(label, *_both(sides, field, words)) for label, field, words in COSTS if field not in same]
    found += [(share.label, _words(share.before, percent), _words(share.after, percent)) for share in shares(result)]
    found += [(label, *_both(telemetry, field, words)) for label, field, words in FIGURES]
    held, disturbed = zip(*(_events(reading) for reading in telemetry), strict=True)
    found += [("GPU clock held down by", *held), ("disturbed by", *disturbed)]
    return [(label, before, after) for label, before, after in found if (before, after) != ("–", "–")]


def _telemetry(measurement: Measurement | None) -> TelemetrySummary | None:
    return measurement.telemetry if measurement is not None else None


def _events(telemetry: TelemetrySummary | None) -> tuple[str, str]:
    """What held the clocks down, and what disturbed the figure."""
    if telemetry is None:
        return "–", "–"
    return ", ".join(telemetry.clock_limits) or "–", telemetry.disturbance or "–"


def _number(record: object, field: str) -> float | None:
    value: float | None = getattr(record, field, None)
    return value


def _both(records: tuple[object, object] | list[TelemetrySummary | None], field: str, words: Words) -> tuple[str, str]:
    before, after = (_words(_number(record, field), words) for record in records)
    return before, after


def _words(value: float | None, words: Words) -> str:
    return "–" if value is None else words(value)
