"""What the machine did while baseline and answer were timed: the telemetry of both, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune.measuring import Measurement, TelemetrySummary
from autotune.report.charts import Share
from autotune.results.result import Result
from autotune.units import format_bytes, format_seconds
from autotune.wording import or_dash, percent

Words = Callable[[Any], str]
SHARES = {
    "CPUs: this run": "cpu_fraction",
    "CPUs: other programs": "foreign_cpu_fraction",
    "CPUs: other virtual machines": "stolen_cpu_fraction",
    "CPUs: idle": "idle_cpu_fraction",
    "GPU: time with a kernel running": "gpu_utilization_fraction",
    "GPU: multiprocessors busy": "sm_activity_fraction",
    "GPU: tensor cores busy": "tensor_activity_fraction",
    "GPU: other programs": "foreign_gpu_fraction",
}
WAITING = "waiting for data"
PEAKS = {
    "compute": "FLOP/s, of the fastest matrix product",
    "memory": "memory traffic, of the fastest copy",
    "loading": "rate, of the loader alone",
}
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
    ("GPU memory outside torch's allocator", "device_context_bytes", format_bytes),
    ("allocator retries", "allocator_retries", "{:d}".format),
    ("GPU memory lost to fragmentation", "fragmented_bytes", format_bytes),
    ("GPU clock limited by", "clock_limits", lambda limits: ", ".join(limits) or "–"),
    ("disturbed by", "disturbance", str),
)
COSTS: tuple[tuple[str, str, Words], ...] = (
    ("device memory, peak", "device_memory_bytes", format_bytes),
    ("host memory, peak", "host_memory_bytes", format_bytes),
    ("process start", "start_seconds", format_seconds),
    ("build()", "build_seconds", format_seconds),
    ("warm-up", "warmup_seconds", format_seconds),
    ("compiling, part of the warm-up", "compile_seconds", format_seconds),
    ("collating the data set, before training", "placement_seconds", format_seconds),
    ("timed part", "measure_seconds", format_seconds),
    ("restart of the loader between epochs", "epoch_boundary_seconds", format_seconds),
    ("optimizer steps skipped by the GradScaler", "skipped_steps", "{:d}".format),
    ("loss at the last step", "final_loss", "{:.4g}".format),
    ("graph breaks", "graph_breaks", "{:d}".format),
    ("recompilations", "recompiles", "{:d}".format),
)


def telemetry_shares(result: Result) -> list[Share]:
    """All shares that were read on either side."""
    sides, telemetry = _records(result)
    found = [Share(WAITING, *_both(sides, "data_wait_fraction"))]
    for part, label in PEAKS.items():
        before, after = result.peak_share(part, "baseline"), result.peak_share(part, "best")
        if after is not None:
            found.append(Share(label, before.share if before is not None else None, after.share))
    found += [Share(label, *_both(telemetry, field)) for label, field in SHARES.items()]
    return [share for share in found if share.before is not None or share.after is not None]


def telemetry_rows(result: Result) -> list[tuple[str, str, str]]:
    """All that was read, as label, before and after; what neither side knows is left out."""
    sides, telemetry = _records(result)
    # Without a device of its own, the device's memory is the host's.
    same = {"device_memory_bytes"} if result.constraints.device == "cpu" else set()
    found = [(label, *_both(sides, field), words) for label, field, words in COSTS if field not in same]
    found += [(*share, percent) for share in telemetry_shares(result)]
    found += [(label, *_both(telemetry, field), words) for label, field, words in FIGURES]
    rows = [(label, or_dash(before, words), or_dash(after, words)) for label, before, after, words in found]
    return [row for row in rows if row[1:] != ("–", "–")]


def _records(result: Result) -> tuple[list[Measurement | None], list[TelemetrySummary | None]]:
    """What was measured on both sides, and the telemetry of both."""
    sides = [result.baseline.measurement, result.best.measurement]
    return sides, [side.telemetry if side is not None else None for side in sides]


def _both(records: Sequence[object], field: str) -> tuple[Any, Any]:
    before, after = (getattr(record, field, None) for record in records)
    return before, after
