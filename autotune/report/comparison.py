"""The page that compares machines: per workload the rates side by side, shared and particular knobs, and crosses."""

from __future__ import annotations

from autotune.report.blocks import Block, Bullets, Picture, Section, Table, Text
from autotune.report.charts import machines_picture
from autotune.report.page import Page, RawData, render
from autotune.results.compare import Comparison, WorkloadGroup
from autotune.results.files import to_json
from autotune.results.sheet import Sheet, sheet
from autotune.results.summary import INTERVAL
from autotune.units import format_rate

MOST_DRAWN = 40
"""Most machines in the picture of one workload; the table has all. Not tuned."""


def render_comparison(comparison: Comparison) -> str:
    """A comparison as one self-contained HTML page."""
    groups = comparison.groups
    machines = {row.label for group in groups for row in group.rows}
    about = f"{_count(len(groups), 'workload')} on {_count(len(machines), 'machine')}"
    sections = [_group_section(number, group) for number, group in enumerate(groups, 1)]
    if not groups:
        sections.append(Section("nothing", "Results", "Results", [Text("No results to compare.", "note")]))
    if comparison.warnings:
        sections.append(Section("warning", "Warnings", "Warnings", [Bullets(comparison.warnings)]))
    if comparison.problems:
        sections.append(Section("left-out", "Left out", "Left out", [Bullets(comparison.problems)]))
    return render(
        Page(
            title=f"{about} – autotune",
            heading="Machines compared",
            about=(about,),
            sections=sections,
            raw=RawData(
                name="comparison.json", text=to_json(comparison), place="what 'autotune compare --format json' prints"
            ),
        )
    )


def _group_section(number: int, group: WorkloadGroup) -> Section:
    blocks: list[Block] = [Text(f"{group.target}, fingerprint {group.fingerprint}", "note")]
    svg = machines_picture(f"machines-{number}", group.rows[:MOST_DRAWN])
    if svg is None:
        blocks.append(Text("None of these results has a rate.", "note"))
    else:
        legend = f"upper bar: before; lower bar: after, in samples/s; line across the end: {INTERVAL}"
        if len(group.rows) > MOST_DRAWN:
            legend += f"; the {MOST_DRAWN} fastest are drawn"
        blocks.append(Picture(svg, _finding(group), legend))
    group_sheet = sheet(group)
    if group_sheet.choices:
        blocks.append(Bullets(group_sheet.choices, "Where to train"))
    changes = tuple((line.machine, ", ".join(line.changes) or "none") for line in group_sheet.lines)
    blocks += [_rates_table(group_sheet), Table("Changed knobs", ("machine", "changes"), changes)]
    if group_sheet.sharers:
        blocks.append(Text(f"{group_sheet.shared}.", lead=group_sheet.sharers))
        if group_sheet.particular:
            blocks.append(Table("Particular to machines", ("knob", "values"), group_sheet.particular))
    if group.crosses:
        findings = [f"{cross.machine} {cross.finding}" for cross in group.crosses]
        notes = [f"warning: {note}" for cross in group.crosses for note in cross.notes]
        blocks.append(Bullets((*findings, *notes), "With another machine's config"))
    return Section(f"workload-{number}", group.name, group.name, blocks)


def _finding(group: WorkloadGroup) -> str:
    rows = [row for row in group.rows if row.after_samples_per_second is not None]
    rates = [f"{row.label}: {format_rate(row.after_samples_per_second or 0)} after tuning" for row in rows]
    return f"{'; '.join(rates)}."


def _rates_table(group_sheet: Sheet) -> Table:
    headings = ("machine", *group_sheet.headings, "measured")
    rows = []
    for line in group_sheet.lines:
        figures = [f"{cell.text}\n{cell.below}".rstrip() for cell in line.cells]
        measured = [*line.about, *(["partial"] if line.partial else []), line.path]
        rows.append((line.machine, *figures, "\n".join(measured)))
    caption = f"Samples/s, each with its {INTERVAL}"
    return Table(caption, headings, tuple(rows), frozenset(range(1, len(headings) - 1)), wide=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
