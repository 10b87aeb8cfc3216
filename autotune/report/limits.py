"""The sections on what limits the training: ceilings, memory, telemetry, and the diagnosis that follows from them."""

from __future__ import annotations

from autotune.measuring import Interval
from autotune.report.blocks import Block, Bullets, Folded, Pair, Picture, Table, Text
from autotune.report.charts import NO_INTERVAL, Bar, ceilings_picture, rates_picture, shares_picture
from autotune.report.drawing import BEFORE, PART
from autotune.report.footprint import Footprint, footprint
from autotune.report.pairs import rounds_of
from autotune.report.scatters import blocks_picture, memory_picture
from autotune.report.telemetry import telemetry_rows, telemetry_shares
from autotune.results.result import Result
from autotune.results.summary import (
    INTERVAL,
    UNKNOWN,
    ceilings_text,
    growth_texts,
    headroom_text,
    operators,
    peak_texts,
    rate_interval,
    sample_parts,
)
from autotune.units import format_bytes, format_rate
from autotune.wording import or_dash, percent

RIGHT = frozenset({1, 2})
BOTTLENECKS = {
    "compute": "the model's own computation is the limit",
    "loader": "training waits for data, so the loader is the limit",
    "copy": "the copy to the device is the limit",
    "overhead": "training stays below every ceiling without waiting for data, so the limit lies between the parts",
}


def ceilings(result: Result) -> list[Block]:
    """What was reached, beside what each part alone could reach."""
    svg, words = ceilings_picture(result), ceilings_text(result)
    found = _headroom(result)
    if svg is None or words is None or result.best.measurement is None:
        why = "No part of the training was measured alone: there was no time, or it failed."
        return [*found, Text(f"{words}." if words else why, "note")]
    reached = result.best.measurement.samples_per_second
    rows = [("reached, end to end", format_rate(reached), "")]
    for part, rate in result.diagnosis.ceilings.items():
        share = percent(reached / rate) if rate else ""
        rows.append((f"{part} alone", UNKNOWN if rate is None else format_rate(rate), share))
    finding = f"Reached: {format_rate(reached)}; {words}."
    legend = "dot: reached; diamond: a part alone, as a multiple of what was reached"
    return [
        *found,
        Text(
            "A part alone is the training without the others: batches that stay on the device, a loader without a "
            "model, the copy to the device. Training can hardly run faster than its slowest part."
        ),
        Pair(
            Picture(svg, finding, legend),
            Table("What each part alone could reach", ("", "rate", "share reached"), tuple(rows), numeric=RIGHT),
        ),
    ]


def _headroom(result: Result) -> list[Block]:
    """What a faster loader could have brought, as it was measured before the search."""
    headroom, before = result.diagnosis.headroom, result.baseline.measurement
    if headroom is None:
        return []
    finding = headroom_text(headroom)
    told = Text(f"{finding[0].upper()}{finding[1:]}.")
    if before is None:
        return [told]
    cached = before.samples_per_second * headroom.ratio
    spread = headroom.ci95
    interval = Interval(*(before.samples_per_second * end for end in spread)) if spread is not None else NO_INTERVAL
    bars = [
        Bar("before, with its loader", before.samples_per_second, rate_interval(result.baseline), BEFORE),
        Bar("before, on batches at hand", cached, interval, PART),
    ]
    svg = rates_picture(bars, "headroom")
    legend = f"bar: samples/s; line across its end: {INTERVAL}"
    return [told] if svg is None else [told, Picture(svg, f"{finding}.", legend)]


def memory(result: Result) -> list[Block]:
    """Memory against batch, with the fitted line and the target."""
    found = footprint(result)
    svg = memory_picture(found)
    if svg is None:
        return [Text("No burst in this file tells how much memory it took.", "note")]
    if found.target_bytes is None:
        target = "The size of the device's memory could not be read, so there is no target."
    else:
        kind = "host" if result.constraints.device == "cpu" else "device"
        share = percent(result.constraints.memory_target)
        target = f"The target, {share} of the {kind} memory that is free, is {format_bytes(found.target_bytes)}."
    finding = f"{target} {_line_text(found)}"
    legend = (
        "filled: bursts with the line's knobs; hollow: other bursts; solid line: fitted, dashed beyond what was run; "
        "dash-dotted line: the target; cross: ran out of memory"
    )
    headings = ("micro-batch", "bursts", "peak memory", "by the line", "out of memory")
    table = Table("Peak memory by micro-batch", headings, _memory_rows(found), numeric=frozenset(range(1, 5)))
    return [Text(finding), Pair(Picture(svg, finding, legend), table)]


def telemetry(result: Result) -> list[Block]:
    """What the machine did meanwhile."""
    rows = telemetry_rows(result)
    if not rows:
        return [Text("Neither side was measured, so there is no telemetry.", "note")]
    before, after = result.baseline.measurement, result.best.measurement
    sides = {label: side for label, side in (("before", before), ("after", after)) if side is not None}
    shares = telemetry_shares(result)
    pictures: list[Picture] = []
    if (svg := shares_picture(shares)) is not None:
        found = [f"{name}: {or_dash(old, percent)} before, {or_dash(new, percent)} after" for name, old, new in shares]
        pictures.append(Picture(svg, f"{'; '.join(found)}.", "ring: before; dot: after"))
    paired = bool(rounds_of(result))  # then the blocks have a picture of their own
    if not paired and (svg := blocks_picture(before, after if result.changed_knobs else None)) is not None:
        found = [
            f"{label}: {format_rate(min(side.block_rates))} to {format_rate(max(side.block_rates))}"
            for label, side in sides.items()
        ]
        finding = f"Rates of the timed blocks, {'; '.join(found)}."
        legend = "samples/s of each timed block; hollow squares: before; dots: after; lines: over all"
        pictures.append(Picture(svg, finding, legend))
    blocks: list[Block] = [Pair(*pictures)] if len(pictures) == 2 else [*pictures]
    if any(side.telemetry is None for side in sides.values()):
        blocks.append(Text("What is missing below was not recorded, or this machine does not report it.", "note"))
    return [*blocks, Table("Telemetry of the timed part", ("", "before", "after"), tuple(rows), numeric=RIGHT)]


def diagnosis(result: Result) -> list[Block]:
    """The bottleneck, the advice, and the profiles that they rest on."""
    diagnosis = result.diagnosis
    bottleneck = diagnosis.bottleneck or "not found"
    meaning = BOTTLENECKS.get(bottleneck)
    blocks: list[Block] = [Text(f"{bottleneck}: {meaning}." if meaning else f"{bottleneck}.", lead="bottleneck")]
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


def _memory_rows(memory: Footprint) -> tuple[tuple[str, ...], ...]:
    """For each micro-batch: how many bursts, what they took, what the line says, how many ran out."""
    taken: dict[int, list[float]] = {}
    for batch, size, _ in memory.points:
        taken.setdefault(batch, []).append(size)
    rows = []
    for batch in sorted({*taken, *memory.exceeded}):
        sizes, failed = taken.get(batch, []), memory.exceeded.count(batch)
        spread = " – ".join(dict.fromkeys(format_bytes(end) for end in (min(sizes), max(sizes)))) if sizes else UNKNOWN
        expected = format_bytes(memory.line.bytes_at(batch)) if memory.line is not None else "no line"
        rows.append((f"{batch:,}", f"{len(sizes) + failed}", spread, expected, f"{failed}"))
    return tuple(rows)


def _line_text(memory: Footprint) -> str:
    """The fitted line in words."""
    line = memory.line
    if line is None:
        return "No combination of the other knobs was run with two micro-batch sizes, so there is no line."
    whose = "the chosen config" if memory.of_best else "the combination of knobs most like the chosen config's"
    if line.sample_bytes <= 0:
        return f"Fitted for {whose}: {format_bytes(line.base_bytes)}, which does not grow with the batch."
    words = f"Fitted for {whose}: {format_bytes(line.base_bytes)} and {format_bytes(line.sample_bytes)} per sample"
    if memory.largest_batch is None:
        return f"{words}."
    return f"{words}; the largest micro-batch that fits under the target is then {memory.largest_batch:,}."
