"""The sections on what limits the training: ceilings, memory, telemetry, and the diagnosis that follows from them."""

from __future__ import annotations

from autotune.report import telemetry
from autotune.report.blocks import Block, Bullets, Folded, Pair, Picture, Section, Table, Text
from autotune.report.charts import ceilings_picture, shares_picture
from autotune.report.footprint import Footprint, footprint
from autotune.report.scatters import blocks_picture, memory_picture
from autotune.results.result import Result
from autotune.results.summary import UNKNOWN, ceilings_text, operators, sample_parts
from autotune.units import format_bytes, format_rate
from autotune.wording import percent

RIGHT = frozenset({1, 2})
BOTTLENECKS = {
    "compute": "what the model itself computes is what limits",
    "loader": "what limits is the loader: training waits for data",
    "copy": "the copy to the device is what limits",
    "overhead": "training stays below all ceilings without waiting for data, so what limits lies between the parts",
}


def ceilings_section(result: Result) -> Section:
    """What was reached, beside what each part alone could reach."""
    title, short = "Ceilings against what was reached", "Ceilings"
    svg, words = ceilings_picture(result), ceilings_text(result)
    if svg is None or words is None or result.best.measurement is None:
        why = "No part of the training was measured alone: there was no time, or it failed."
        return Section("ceilings", title, short, (Text(f"{words}." if words else why, "note"),))
    reached = result.best.measurement.samples_per_second
    rows = [("reached, end to end", format_rate(reached), "")]
    for part, rate in result.diagnosis.ceilings.items():
        share = percent(reached / rate) if rate else ""
        rows.append((f"{part} alone", UNKNOWN if rate is None else format_rate(rate), share))
    finding = f"Reached: {format_rate(reached)}; {words}."
    legend = "dot: reached; diamond: a part alone, and how many times what was reached"
    blocks = (
        Text(
            "A part alone is the training without the others: batches that stay on the device, a loader without a "
            "model, the copy to the device. Training can hardly run faster than its slowest part."
        ),
        Pair(
            Picture(svg, finding, legend),
            Table("What each part alone could reach", ("", "rate", "reached, of it"), tuple(rows), numeric=RIGHT),
        ),
    )
    return Section("ceilings", title, short, blocks)


def memory_section(result: Result) -> Section:
    """Memory against batch, with the fitted line and the target."""
    title, short = "Memory against batch", "Memory"
    memory = footprint(result)
    svg = memory_picture(memory)
    if svg is None:
        return Section("memory", title, short, (Text("No burst in this file tells what memory it took.", "note"),))
    if memory.target_bytes is None:
        target = "What the device holds could not be read, so there is no target."
    else:
        kind = "host" if result.constraints.device == "cpu" else "device"
        share = percent(result.constraints.memory_target)
        target = f"The target, {share} of the {kind} memory, is {format_bytes(memory.target_bytes)}."
    finding = f"{target} {_line_text(memory)}"
    legend = (
        "filled: bursts with the line's knobs; hollow: other bursts; solid line: fitted, dashed beyond what was run; "
        "dash-dotted line: the target; cross: ran out of memory"
    )
    headings = ("micro-batch", "bursts", "peak memory", "by the line", "ran out")
    table = Table("Peak memory by micro-batch", headings, _memory_rows(memory), numeric=frozenset(range(1, 5)))
    return Section("memory", title, short, (Text(finding), Pair(Picture(svg, finding, legend), table)))


def telemetry_section(result: Result) -> Section:
    """What the machine did meanwhile."""
    title, short = "Telemetry, before and after", "Telemetry"
    rows = telemetry.rows(result)
    if not rows:
        return Section("telemetry", title, short, (Text("Neither side was measured, so nothing was watched.", "note"),))
    before, after = result.baseline.measurement, result.best.measurement
    sides = {label: side for label, side in (("before", before), ("after", after)) if side is not None}
    shares = telemetry.shares(result)
    pictures: list[Picture] = []
    if (svg := shares_picture(shares)) is not None:
        found = [f"{share.label}: {_share(share.before)} before, {_share(share.after)} after" for share in shares]
        pictures.append(Picture(svg, f"{'; '.join(found)}.", "ring: before; dot: after"))
    if (svg := blocks_picture(before, after if result.changed_knobs else None)) is not None:
        found = [
            f"{label}: {format_rate(min(side.block_rates))} to {format_rate(max(side.block_rates))}"
            for label, side in sides.items()
        ]
        finding = f"Rates of the timed blocks, {'; '.join(found)}."
        legend = "samples/s of each timed block; hollow squares: before; dots: after; lines: medians"
        pictures.append(Picture(svg, finding, legend))
    blocks: list[Block] = [Pair(*pictures)] if len(pictures) == 2 else [*pictures]
    if any(side.telemetry is None for side in sides.values()):
        blocks.append(Text("What is missing below was not recorded, or this machine does not report it.", "note"))
    blocks.append(Table("Telemetry of the timed part", ("", "before", "after"), tuple(rows), numeric=RIGHT))
    return Section("telemetry", title, short, tuple(blocks))


def diagnosis_section(result: Result) -> Section:
    """The bottleneck, the advice, and the profiles that they rest on."""
    title, short = "Diagnosis and advice", "Diagnosis"
    diagnosis = result.diagnosis
    bottleneck = diagnosis.bottleneck or "not found"
    meaning = BOTTLENECKS.get(bottleneck)
    blocks: list[Block] = [Text(f"{bottleneck}: {meaning}." if meaning else f"{bottleneck}.", lead="bottleneck")]
    if diagnosis.advice:
        blocks.append(Bullets(diagnosis.advice, "Advice: what only you can change"))
    else:
        blocks.append(Text("No advice: nothing that was measured speaks for a change of your own code.", "note"))
    if diagnosis.before is None and diagnosis.after is None:
        blocks.append(Text("No profile was taken: no time was left after the confirmation.", "note"))
    else:
        blocks += _profiles(result)
    return Section("diagnosis", title, short, tuple(blocks))


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
        return "No combination of the other knobs was run with two sizes of the micro-batch, so there is no line."
    whose = "the chosen config" if memory.of_best else "the combination of knobs most like the chosen config's"
    if line.sample_bytes <= 0:
        return f"Fitted for {whose}: {format_bytes(line.base_bytes)}, which does not grow with the batch."
    words = f"Fitted for {whose}: {format_bytes(line.base_bytes)} and {format_bytes(line.sample_bytes)} a sample"
    if memory.largest_batch is None:
        return f"{words}."
    return f"{words}; by it, the largest micro-batch under the target is {memory.largest_batch:,}."


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else percent(value)


def _profiles(result: Result) -> list[Block]:
    """The slowest operators of both sides, and what reading a sample takes."""
    blocks: list[Block] = []
    if rows := operators(result):
        table = Table("Operators, time a sample", ("operator", "before", "after"), tuple(rows), numeric=RIGHT)
        blocks.append(Folded("The slowest operators", (table,)))
    if rows := sample_parts(result):
        table = Table("What reading a sample takes", ("", "where", "time"), tuple(rows), numeric=frozenset({2}))
        blocks.append(Folded("What reading a sample takes", (table,)))
    return blocks
