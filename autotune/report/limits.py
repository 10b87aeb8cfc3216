"""The sections on the limits of the training: ceilings, memory, telemetry, and the diagnosis from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune.measuring import Outcome
from autotune.report.answer import RIGHT, sentence
from autotune.report.blocks import Block, Bullets, Folded, Pair, Picture, Table, Text
from autotune.report.charts import ceilings_picture
from autotune.report.drawing import drawable
from autotune.report.scatters import memory_picture
from autotune.results.result import Result
from autotune.results.summary import (
    UNKNOWN,
    bottleneck_text,
    ceilings_text,
    growth_texts,
    headroom_text,
    operators,
    peak_texts,
    sample_parts,
    why_not_measured,
)
from autotune.units import format_bytes, format_rate, format_seconds
from autotune.wording import or_dash, percent


def ceilings(result: Result) -> list[Block]:
    """The reached rate, beside the ceiling of each part alone."""
    svg, words = ceilings_picture(result), ceilings_text(result)
    headroom = result.diagnosis.headroom
    blocks: list[Block] = []
    if headroom is not None:
        blocks.append(Text(sentence(headroom_text(headroom))))
    if svg is None or words is None or result.best.measurement is None:
        why = f"No part of the training was measured alone: {why_not_measured(result)}."
        return [*blocks, Text(f"{words}." if words else why, "note")]
    reached = result.best.measurement.samples_per_second
    rows = [("reached, end to end", format_rate(reached), "")]
    for part, rate in result.diagnosis.ceilings.items():
        share = percent(reached / rate) if rate else ""
        rows.append((f"{part} alone", UNKNOWN if rate is None else format_rate(rate), share))
    finding = f"Reached: {format_rate(reached)}; {words}."
    legend = "dot: reached; diamond: a part alone, as a multiple of what was reached"
    return [
        *blocks,
        Text(
            "A part alone is the training without the others: batches that stay on the device, a loader without a "
            "model, the copy to the device. Training can hardly run faster than its slowest part."
        ),
        Pair(
            Picture(svg, finding, legend),
            Table("What each part alone could reach", ("", "rate", "share reached"), tuple(rows), numeric=RIGHT),
        ),
    ]


def memory(result: Result) -> list[Block]:
    """Peak memory by micro-batch, and the target."""
    limits, own = result.constraints, result.baseline.config.batch_size
    limit = limits.memory_limit_bytes or result.hardware.memory_limit_bytes(limits.device, limits.memory_target)
    target = limit if drawable(limit) else None
    trials = [(batch, trial) for trial in result.trials if type(batch := trial.changes.get("batch_size", own)) is int]
    taken = [(batch, size) for batch, trial in trials if (size := trial.memory_bytes) is not None and drawable(size)]
    exceeded = [batch for batch, trial in trials if trial.outcome is Outcome.OOM]
    svg = memory_picture(taken, exceeded, target)
    if svg is None:
        return [Text("No burst in this file tells how much memory it took.", "note")]
    finding = "The size of the device's memory could not be read, so there is no target."
    if target is not None:
        kind = "host" if limits.device == "cpu" else "device"
        share = percent(limits.memory_target)
        finding = f"The target, {share} of the {kind} memory that is free, is {format_bytes(target)}."
    rows = []
    for batch in sorted({*(batch for batch, _ in taken), *exceeded}):
        sizes, failed = [size for other, size in taken if other == batch], exceeded.count(batch)
        spread = " – ".join(dict.fromkeys(format_bytes(end) for end in (min(sizes), max(sizes)))) if sizes else UNKNOWN
        rows.append((f"{batch:,}", f"{len(sizes) + failed}", spread, f"{failed}"))
    headings = ("micro-batch", "bursts", "peak memory", "out of memory")
    table = Table("Peak memory by micro-batch", headings, tuple(rows), numeric=frozenset(range(1, 4)))
    legend = "dot: a burst; dash-dotted line: the target; cross: ran out of memory"
    return [Text(finding), Pair(Picture(svg, finding, legend), table)]


def telemetry(result: Result) -> list[Block]:
    """The machine's telemetry during the timed part."""
    rows = telemetry_rows(result)
    if not rows:
        return [Text("Neither side was measured, so there is no telemetry.", "note")]
    sides = [side for side in (result.baseline.measurement, result.best.measurement) if side is not None]
    table = Table("Telemetry of the timed part", ("", "before", "after"), tuple(rows), numeric=RIGHT)
    if all(side.telemetry is not None for side in sides):
        return [table]
    return [Text("What is missing below was not recorded, or this machine does not report it.", "note"), table]


def diagnosis(result: Result) -> list[Block]:
    """The bottleneck, the advice, and the profiles behind them."""
    diagnosis = result.diagnosis
    blocks: list[Block] = [Text(f"{bottleneck_text(result)}.", lead="bottleneck")]
    for lines, title in ((peak_texts(result), "Is this speed normal?"), (growth_texts(result), "What grows")):
        if lines:
            blocks.append(Bullets(tuple(lines), title))
    if diagnosis.advice:
        blocks.append(Bullets(diagnosis.advice, "Advice: what only you can change"))
    else:
        blocks.append(Text("No advice: nothing that was measured calls for a change in your own code.", "note"))
    if diagnosis.before is None and diagnosis.after is None:
        blocks.append(Text(f"No profile was taken: {why_not_measured(result)}.", "note"))
    if rows := operators(result):
        table = Table("Time per sample by operator", ("operator", "before", "after"), tuple(rows), numeric=RIGHT)
        blocks.append(Folded("The slowest operators", (table,)))
    if rows := sample_parts(result):
        table = Table("What reading a sample takes", ("", "where", "time"), tuple(rows), numeric=frozenset({2}))
        blocks.append(Folded("What reading a sample takes", (table,)))
    return blocks


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
