"""The sections on the limits of the training: ceilings, memory, telemetry, and the diagnosis from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.measuring import Measurement, Outcome
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.report.answer import RIGHT
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
)
from autotune.units import format_bytes, format_rate, format_seconds
from autotune.wording import percent


def ceilings(result: Result) -> list[Block]:
    """The reached rate, beside the ceiling of each part alone."""
    svg, words = ceilings_picture(result), ceilings_text(result)
    headroom = result.diagnosis.headroom
    blocks: list[Block] = []
    if headroom is not None:
        sentence = headroom_text(headroom)
        blocks.append(Text(f"{sentence[0].upper()}{sentence[1:]}."))
    if svg is None or words is None or result.best.measurement is None:
        why = "No part of the training was measured alone: there was no time, or it failed."
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
        blocks.append(Text("No profile was taken: no time was left after the confirmation.", "note"))
    if rows := operators(result):
        table = Table("Time per sample by operator", ("operator", "before", "after"), tuple(rows), numeric=RIGHT)
        blocks.append(Folded("The slowest operators", (table,)))
    if rows := sample_parts(result):
        table = Table("What reading a sample takes", ("", "where", "time"), tuple(rows), numeric=frozenset({2}))
        blocks.append(Folded("What reading a sample takes", (table,)))
    return blocks


UNITS: dict[str, Callable[[Any], str]] = {
    "seconds": format_seconds,
    "fraction": percent,
    "bytes": format_bytes,
    "mhz": "{:,.0f} MHz".format,
    "celsius": "{:.0f} °C".format,
    "watts": "{:.1f} W".format,
    "joules": "{:,.4g} J".format,
}
"""How a figure is written, by the unit at the end of its name."""
ELSEWHERE = {"blocks", "telemetry", "looks", "epoch_samples", "device_memory_bytes", "host_memory_bytes"}
"""What other sections show."""


def telemetry_rows(result: Result) -> list[tuple[str, str, str]]:
    """Rows of label, before and after for all figures that a side or its telemetry has and no other section shows."""
    sides = [result.baseline.measurement, result.best.measurement]
    telemetry = [side.telemetry if side is not None else None for side in sides]
    rows = []
    for kind, records in ((Measurement, sides), (TelemetrySummary, telemetry)):
        for name, field in kind.model_fields.items():
            before, after = (_figure(name, getattr(record, name, None)) for record in records)
            if name not in ELSEWHERE and (before, after) != ("–", "–"):
                label = name.removesuffix(f"_{_unit(name)}").replace("_", " ")
                rows.append((f"{label}: {field.description}" if field.description else label, before, after))
    before, after = (getattr(record, "disturbance", None) or "–" for record in telemetry)
    return rows if (before, after) == ("–", "–") else [*rows, ("disturbed by", before, after)]


def _figure(name: str, value: Any) -> str:
    """A figure in its unit; a dash where it is not known, or lists nothing."""
    if value is None or value == ():
        return "–"
    if isinstance(value, tuple):
        return ", ".join(value)
    return UNITS.get(_unit(name), "{:,.4g}".format)(value)


def _unit(name: str) -> str:
    unit = name.rpartition("_")[2]
    return unit if unit in UNITS else ""
