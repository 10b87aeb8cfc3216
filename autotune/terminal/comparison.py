"""The tables of several machines: results side by side, and another machine's config measured here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from autotune.results.compare import Comparison, WorkloadGroup
from autotune.results.cross_file import Cross, gain_or_loss
from autotune.results.sheet import Cell, Sheet, rate_cell, sheet
from autotune.results.summary import rate_interval, ratio_with_interval, settings_text
from autotune.terminal.console import plain_table
from autotune.units import format_bytes
from autotune.wording import as_text, labelled, or_dash

STYLES = {"plain": "", "good": "green", "doubtful": "yellow"}


def comparison_table(comparison: Comparison) -> RenderableType:
    """One table per workload with a row per machine, followed by the remarks."""
    parts: list[RenderableType] = []
    for group in comparison.groups:
        group_sheet = sheet(group)
        parts += [as_text(f"{group.name} ({group.target}), samples/s", "bold"), _group_table(group_sheet), ""]
        parts += [*(as_text(choice) for choice in group_sheet.choices), *([""] if group_sheet.choices else [])]
        parts += [*_below(group_sheet), *_crosses(group), ""]
    if not comparison.groups:
        parts.append(as_text("no results to compare"))
    return Group(*parts, remarks(comparison))


def remarks(comparison: Comparison) -> RenderableType:
    """The warnings, and the files that were left out; empty if there are none."""
    warnings = [labelled("warning", warning) for warning in comparison.warnings]
    return Group(*warnings, *(labelled("left out", problem, "red") for problem in comparison.problems))


def cross_lines(cross: Cross) -> RenderableType:
    """Another machine's config beside this machine's own: rates, the comparison, and warnings."""
    workload = cross.workload
    parts: list[RenderableType] = [as_text(f"{workload.name} ({workload.target}) on {cross.machine}", "bold"), ""]
    parts += [_sides_table(cross), "", *_verdict(cross)]
    return Group(*parts, *(labelled("warning", note) for note in cross.notes))


# One workload.


def _group_table(group_sheet: Sheet) -> Table:
    table = _table("machine", *group_sheet.headings)
    for line in group_sheet.lines:
        machine = Text.assemble(as_text(line.machine), "\n", as_text(", ".join(reversed(line.about)), "dim"))
        if line.partial:
            machine.append("\npartial", style="yellow")
        table.add_row(machine, *map(_cell, line.cells))
    return table


def _table(first: str, *figures: str) -> Table:
    columns = [Column(heading, justify="right", overflow="fold") for heading in figures]
    return plain_table(Column(first, overflow="fold"), *columns)


def _cell(cell: Cell) -> Text:
    below = (f"\n{cell.below}", "dim") if cell.below else ""
    return Text.assemble((cell.text, STYLES[cell.tone]), below)


def _below(group_sheet: Sheet) -> Iterator[RenderableType]:
    """The knobs that tuning changed on each machine, those on which all agree, and those particular to one."""
    yield Text("changed knobs", "bold")
    several = Counter(line.machine for line in group_sheet.lines)
    for line in group_sheet.lines:
        dated = f" ({line.about[0]})" if several[line.machine] > 1 else ""
        yield labelled(f"{line.machine}{dated}", ", ".join(line.changes) or "none", "dim")
    if not group_sheet.sharers:
        return
    yield Text("")
    yield labelled(group_sheet.sharers, group_sheet.shared, "bold")
    if group_sheet.particular:
        yield Text("particular to machines", "bold")
    for knob, values in group_sheet.particular:
        yield labelled(knob, values, "dim")


def _crosses(group: WorkloadGroup) -> Iterator[RenderableType]:
    """How each machine runs with another machine's config."""
    if not group.crosses:
        return
    yield Text("")
    yield Text("with another machine's config", "bold")
    for cross in group.crosses:
        yield Text.assemble(as_text(f"{cross.machine} ", "dim"), as_text(cross.finding))
        yield from (labelled("warning", note) for note in cross.notes)


# One cross.


def _sides_table(cross: Cross) -> Table:
    table = _table("config", "samples/s", "memory")
    table.add_column("knobs that differ", overflow="fold")
    named = {f"of {cross.config_of.machine}": cross.theirs, "of this machine": cross.own, "baseline": cross.baseline}
    sides = {name: side for name, side in named.items() if side is not None}
    differing = {knob for side in sides.values() for knob in side.config.changes_from(cross.theirs.config)}
    for name, side in sides.items():
        measured, values = side.measurement, side.config.model_dump()
        rate, memory = Cell(), None
        if measured is not None:
            rate = rate_cell(measured.samples_per_second, rate_interval(side))
            memory = measured.host_memory_bytes if cross.device == "cpu" else measured.device_memory_bytes
        knobs = settings_text({knob: value for knob, value in values.items() if knob in differing}, ", ")
        table.add_row(as_text(name), _cell(rate), or_dash(memory, format_bytes), as_text(knobs))
    return table


def _verdict(cross: Cross) -> Iterator[Text]:
    if not cross.ran:
        yield labelled(f"the config of {cross.config_of.machine} cannot train here", str(cross.failure), "bold red")
        return
    if cross.over_own is not None:
        ratio = f"here it reaches {ratio_with_interval(cross.over_own)} of this machine's own config{cross.unit}"
        yield Text.assemble(as_text(ratio, "bold"), as_text(f": it {gain_or_loss(cross.over_own)}"))
    elif cross.same_config:
        yield as_text("this machine's own config is the same", "bold")
    else:
        yield as_text(f"not compared with this machine's own config: {cross.over_own_reason}", "bold")
    if cross.over_baseline is not None:
        yield as_text(f"over the baseline it is {ratio_with_interval(cross.over_baseline)}{cross.unit}")
    else:
        yield as_text(f"not compared with the baseline: {cross.over_baseline_reason}")
