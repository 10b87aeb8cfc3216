"""The page of several machines: for each workload the rates side by side, shared and particular knobs, and crosses."""

from __future__ import annotations

from autotune.measuring.statistics import Interval
from autotune.report.blocks import Block, Bullets, Picture, Section, Table, Text
from autotune.report.charts import Machine, machines_picture
from autotune.report.page import Page, RawData, render
from autotune.results.compare import Comparison, Row, WorkloadGroup
from autotune.results.summary import INTERVAL, bare_rate, knob_text, ratios
from autotune.units import format_bytes, format_rate
from autotune.wording import ratio_text

NOT_KNOWN = "–"
MOST_DRAWN = 40
"""Of one workload; the table has all."""
UNKNOWN_INTERVAL = Interval(0.0, 0.0)


def render_comparison(comparison: Comparison) -> str:
    """A comparison as one self-contained HTML page."""
    found = comparison.groups
    machines = {row.label for group in found for row in group.rows}
    about = f"{_count(len(found), 'workload')} on {_count(len(machines), 'machine')}"
    sections = [_group_section(number, group) for number, group in enumerate(found, 1)]
    if not found:
        nothing = Text("No results to compare.", "note")
        sections.append(Section("nothing", "Results", "Results", (nothing,)))
    for anchor, title, sentences in (
        ("warning", "Warnings", comparison.warnings),
        ("left-out", "Left out", comparison.problems),
    ):
        if sentences:
            sections.append(Section(anchor, title, title, (Bullets(sentences),)))
    return render(
        Page(
            title=f"{about} – autotune",
            heading="Machines compared",
            about=(about,),
            sections=tuple(sections),
            raw=RawData(
                name="comparison.json",
                text=comparison.model_dump_json(indent=2),
                place="what 'autotune compare --format json' prints",
            ),
        )
    )


def _group_section(number: int, group: WorkloadGroup) -> Section:
    blocks: list[Block] = [Text(f"{group.target}, fingerprint {group.fingerprint}", "note")]
    svg = machines_picture(f"machines-{number}", [_machine(row) for row in group.rows[:MOST_DRAWN]])
    if svg is None:
        blocks.append(Text("None of these results has a rate.", "note"))
    else:
        legend = f"upper bar: before; lower bar: after, in samples/s; line across the end: {INTERVAL}"
        if len(group.rows) > MOST_DRAWN:
            legend += f"; the {MOST_DRAWN} fastest are drawn"
        blocks.append(Picture(svg, _finding(group), legend))
    blocks += [_rates_table(group), _changes_table(group)]
    if group.machines > 1:
        shared = ", ".join(f"{knob}={knob_text(knob, value)}" for knob, value in group.shared_knobs.items())
        words = f"shared by {group.all_machines}"
        blocks.append(Text(f"{shared or 'no changed knob'}.", lead=words))
        if group.particular_knobs:
            rows = tuple((knob, group.values_text(knob)) for knob in group.particular_knobs)
            blocks.append(Table("Particular to machines", ("knob", "values"), rows))
    if group.crosses:
        findings = [f"{cross.machine} {cross.finding}" for cross in group.crosses]
        notes = [f"warning: {note}" for cross in group.crosses for note in cross.notes]
        blocks.append(Bullets((*findings, *notes), "With another machine's config"))
    return Section(f"workload-{number}", group.name, group.name, tuple(blocks))


def _machine(row: Row) -> Machine:
    return Machine(
        row.label,
        row.before_samples_per_second,
        row.before_ci95 or UNKNOWN_INTERVAL,
        row.after_samples_per_second,
        row.after_ci95 or UNKNOWN_INTERVAL,
    )


def _finding(group: WorkloadGroup) -> str:
    rows = [row for row in group.rows if row.after_samples_per_second is not None]
    return (
        "; ".join(f"{row.label}: {format_rate(row.after_samples_per_second or 0)} after tuning" for row in rows) + "."
    )


def _rates_table(group: WorkloadGroup) -> Table:
    efficient = any(row.samples_per_joule is not None for row in group.rows)
    headings = ("machine", "before", "after", "speed-up", "memory", *(("per joule",) if efficient else ()), "measured")
    rows = []
    for row in group.rows:
        joule = NOT_KNOWN if row.samples_per_joule is None else bare_rate(row.samples_per_joule)
        rows.append(
            (
                row.label,
                _rate(row.before_samples_per_second, row.before_ci95),
                _rate(row.after_samples_per_second, row.after_ci95),
                _speedup(row),
                NOT_KNOWN if row.memory_bytes is None else f"{format_bytes(row.memory_bytes)}\n{row.memory_of}",
                *((joule,) if efficient else ()),
                _measured(row),
            )
        )
    caption = f"Samples/s, each with its {INTERVAL}"
    return Table(caption, headings, tuple(rows), frozenset(range(1, len(headings) - 1)), wide=True)


def _rate(rate: float | None, interval: Interval | None) -> str:
    if rate is None:
        return NOT_KNOWN
    spread = f"\n{bare_rate(interval.low)} – {bare_rate(interval.high)}" if interval is not None else ""
    return f"{bare_rate(rate)}{spread}"


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return "not confirmed"
    doubt = "" if row.speedup.confirmed else ", not confirmed"
    return f"{ratio_text(row.speedup.ratio)}{doubt}\n{ratios(row.speedup.ci95)}"


def _measured(row: Row) -> str:
    about = [f"{row.created:%Y-%m-%d}", f"torch {row.torch}" if row.torch else None]
    about += ["partial" if row.status == "partial" else None, row.path]
    return "\n".join(part for part in about if part)


def _changes_table(group: WorkloadGroup) -> Table:
    rows = []
    for row in group.rows:
        changes = [
            f"{knob} {knob_text(knob, before)} → {knob_text(knob, after)}"
            for knob, (before, after) in row.changed_knobs.items()
        ]
        rows.append((row.label, ", ".join(changes) or "none"))
    return Table("Changed knobs", ("machine", "changes"), tuple(rows))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
