"""The page that compares machines: per workload the rates side by side, shared and particular knobs, and crosses."""

from __future__ import annotations

from autotune.report.blocks import Block, Bullets, Filter, Picture, Section, Table, Text
from autotune.report.charts import amounts_picture, machines_picture
from autotune.report.page import Page, RawData, render
from autotune.results.compare import Comparison, WorkloadGroup
from autotune.results.files import to_json
from autotune.results.sheet import EXTRA, Sheet, sheet
from autotune.results.summary import INTERVAL, bare_rate
from autotune.units import format_rate

MOST_DRAWN = 40
"""Most machines in the picture of one workload, and most that a box can hide; the table has all. Not tuned."""


def render_comparison(comparison: Comparison) -> str:
    """A comparison as one self-contained HTML page."""
    groups = comparison.groups
    labels = sorted({row.label for group in groups for row in group.rows})
    machines = {label: f"machine-{number}" for number, label in enumerate(labels, 1)}
    boxes = [
        Filter("Machines", {key: label for label, key in machines.items()}),
        Filter("Workloads", {f"workload-{number}": group.name for number, group in enumerate(groups, 1)}),
    ]
    about = f"{_count(len(groups), 'workload')} on {_count(len(machines), 'machine')}"
    sections = [_group_section(number, group, machines) for number, group in enumerate(groups, 1)]
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
            filters=[box for box in boxes if 1 < len(box.labels) <= MOST_DRAWN],
            raw=RawData(
                name="comparison.json", text=to_json(comparison), place="what 'autotune compare --format json' prints"
            ),
        )
    )


def _group_section(number: int, group: WorkloadGroup, machines: dict[str, str]) -> Section:
    keys = tuple(machines[row.label] for row in group.rows)
    blocks: list[Block] = [Text(f"{group.target}, fingerprint {group.fingerprint}", "note")]
    svg = machines_picture(f"machines-{number}", group.rows[:MOST_DRAWN], keys[:MOST_DRAWN])
    if svg is None:
        blocks.append(Text("None of these results has a rate.", "note"))
    else:
        legend = f"upper bar: before; lower bar: after, in samples/s; line across the end: {INTERVAL}"
        if len(group.rows) > MOST_DRAWN:
            legend += f"; the {MOST_DRAWN} fastest are drawn"
        blocks.append(Picture(svg, _finding(group), legend))
    for unit, field in EXTRA.items():
        amounts = [
            (row.label, amount, key)
            for row, key in zip(group.rows[:MOST_DRAWN], keys, strict=False)
            if (amount := getattr(row, field)) is not None
        ]
        if (svg := amounts_picture(f"{field}-{number}", amounts)) is not None:
            finding = "; ".join(f"{label}: {bare_rate(amount)}" for label, amount, _ in amounts)
            blocks.append(Picture(svg, f"Samples {unit}: {finding}.", f"bar: samples {unit}, after tuning"))
    group_sheet = sheet(group)
    if group_sheet.choices:
        blocks.append(Bullets(group_sheet.choices, "Where to train"))
    changes = tuple((line.machine, ", ".join(line.changes) or "none") for line in group_sheet.lines)
    blocks += [_rates_table(group_sheet, keys), Table("Changed knobs", ("machine", "changes"), changes, keys=keys)]
    if group_sheet.sharers:
        blocks.append(Text(f"{group_sheet.shared}.", lead=group_sheet.sharers))
        if group_sheet.particular:
            blocks.append(Table("Particular to machines", ("knob", "values"), group_sheet.particular))
    if group.crosses:
        findings = [f"{cross.machine} {cross.finding}" for cross in group.crosses]
        notes = [f"warning: {note}" for cross in group.crosses for note in cross.notes]
        blocks.append(Bullets((*findings, *notes), "With another machine's config"))
    return Section(f"workload-{number}", group.name, group.name, blocks, tuple(dict.fromkeys(keys)))


def _finding(group: WorkloadGroup) -> str:
    rows = [row for row in group.rows if row.after_samples_per_second is not None]
    rates = [f"{row.label}: {format_rate(row.after_samples_per_second or 0)} after tuning" for row in rows]
    return f"{'; '.join(rates)}."


def _rates_table(group_sheet: Sheet, keys: tuple[str, ...]) -> Table:
    headings = ("machine", *group_sheet.headings, "measured")
    rows = []
    for line in group_sheet.lines:
        figures = [f"{cell.text}\n{cell.below}".rstrip() for cell in line.cells]
        measured = [*line.about, *(["partial"] if line.partial else []), line.path]
        rows.append((line.machine, *figures, "\n".join(measured)))
    caption = f"Samples/s, each with its {INTERVAL}"
    return Table(caption, headings, tuple(rows), frozenset(range(1, len(headings) - 1)), wide=True, keys=keys)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
