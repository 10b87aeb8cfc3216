"""The telemetry of baseline and answer while they were timed, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


def telemetry_rows(result: Result) -> list[tuple[str, str, str]]:
    """Rows of label, before and after for all telemetry that the table of both sides does not show."""
    sides = [result.baseline.measurement, result.best.measurement]
    telemetry = [side.telemetry if side is not None else None for side in sides]
    figures = [(label, *_both(sides, field), words) for label, field, words in COSTS]
    figures += [(label, *_both(telemetry, field), percent) for label, field in SHARES.items()]
    figures += [(label, *_both(telemetry, field), words) for label, field, words in FIGURES]
    rows = [(label, or_dash(before, words), or_dash(after, words)) for label, before, after, words in figures]
    return [row for row in rows if row[1:] != ("–", "–")]


def _both(records: Sequence[object], field: str) -> tuple[Any, Any]:
    before, after = (getattr(record, field, None) for record in records)
    return before, after
