"""The tables of several machines: results side by side, and another machine's config measured here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.measuring.statistics import Interval
from autotune.results.compare import Comparison, Row, WorkloadGroup
from autotune.results.cross_file import Cross, gain_text, ratio_with_interval
from autotune.results.result import Side
from autotune.results.summary import bare_rate, knob_text, ratios
from autotune.units import format_bytes
from autotune.wording import as_text, ratio_text

NOT_KNOWN = "–"


def comparison_table(comparison: Comparison) -> RenderableType:
    """The same workload across machines, a table a workload; then the remarks."""
    parts: list[RenderableType] = []
    for group in comparison.groups:
        parts += [as_text(f"{group.name} ({group.target}), samples/s", "bold"), _group_table(group), ""]
        parts += [*_changes(group), *_knobs(group), *_crosses(group), ""]
    if not comparison.groups:
        parts.append(as_text("no results to compare"))
    return Group(*parts, remarks(comparison))


def remarks(comparison: Comparison) -> RenderableType:
    """The warnings, and what was left out; nothing where all is well."""
    warnings = [_warning(warning) for warning in comparison.warnings]
    return Group(*warnings, *(Text.assemble(("left out: ", "red"), as_text(p)) for p in comparison.problems))


def cross_lines(cross: Cross, path: Path | None = None) -> RenderableType:
    """Another machine's config beside this machine's own: rates, how it compares, and the warnings.

    Args:
        cross: What was measured.
        path: Where it was written, if it was.
    """
    workload, theirs = cross.workload, cross.config_of.machine
    parts: list[RenderableType] = [as_text(f"{workload.name} ({workload.target}) on {cross.machine}", "bold"), ""]
    parts += [_sides_table(cross), "", *_verdict(cross, theirs)]
    parts += [_warning(note) for note in cross.notes]
    if path is not None:
        parts.append(Text.assemble("cross file: ", as_text(str(path), "bold"), ", which autotune compare shows"))
    return Group(*parts)


def _warning(text: str) -> Text:
    return Text.assemble(("warning: ", "yellow"), as_text(text))


# One workload.


def _group_table(group: WorkloadGroup) -> Table:
    efficient = any(row.samples_per_joule is not None for row in group.rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("machine", overflow="fold")
    for heading in ("before", "after", "speed-up", "memory", *(["per joule"] if efficient else [])):
        table.add_column(heading, justify="right", overflow="fold")
    for row in group.rows:
        cells = [_machine_cell(row), *_rate_cells(row), _speedup_cell(row), _memory_cell(row)]
        table.add_row(*cells, *([_efficiency_cell(row)] if efficient else []))
    return table


def _machine_cell(row: Row) -> Text:
    about = [f"torch {row.torch}"] if row.torch else []
    about.append(f"{row.created:%Y-%m-%d}")
    cell = Text.assemble(as_text(row.label), "\n", as_text(", ".join(about), "dim"))
    if row.status == "partial":
        cell.append("\npartial", style="yellow")
    return cell


def _rate_cells(row: Row) -> Iterator[Text]:
    for rate, ci95 in (
        (row.before_samples_per_second, row.before_ci95),
        (row.after_samples_per_second, row.after_ci95),
    ):
        yield _rate_cell(rate, ci95)


def _rate_cell(rate: float | None, ci95: Interval | None) -> Text:
    cell = Text(NOT_KNOWN if rate is None else bare_rate(rate))
    if ci95 is not None:
        cell.append(f"\n{bare_rate(ci95.low)} – {bare_rate(ci95.high)}", style="dim")
    return cell


def _speedup_cell(row: Row) -> Text:
    if row.speedup is None:
        return Text("not\nconfirmed", style="yellow")
    style = "green" if row.speedup.confirmed else "yellow"
    return Text.assemble((ratio_text(row.speedup.ratio), style), (f"\n{ratios(row.speedup.ci95)}", "dim"))


def _memory_cell(row: Row) -> Text:
    if row.memory_bytes is None:
        return Text(NOT_KNOWN)
    return Text.assemble(format_bytes(row.memory_bytes), (f"\n{row.memory_of}", "dim"))


def _efficiency_cell(row: Row) -> Text:
    return Text(NOT_KNOWN if row.samples_per_joule is None else bare_rate(row.samples_per_joule))


def _changes(group: WorkloadGroup) -> Iterator[RenderableType]:
    """What tuning changed on each machine."""
    yield Text("changed knobs", "bold")
    for row in group.rows:
        changes = [
            f"{knob} {knob_text(knob, before)} → {knob_text(knob, after)}"
            for knob, (before, after) in row.changed_knobs.items()
        ]
        dated = f" ({row.created:%Y-%m-%d})" if sum(other.label == row.label for other in group.rows) > 1 else ""
        yield Text.assemble(as_text(f"{row.label}{dated}: ", "dim"), as_text(", ".join(changes) or "none"))


def _knobs(group: WorkloadGroup) -> Iterator[RenderableType]:
    """What all machines agree on, and what is particular to each."""
    if group.machines < 2:
        return
    shared = ", ".join(f"{knob}={knob_text(knob, value)}" for knob, value in group.shared_knobs.items())
    yield Text("")
    yield Text.assemble((f"shared by {group.all_machines}: ", "bold"), as_text(shared or "no changed knob"))
    if group.particular_knobs:
        yield Text("particular to machines", "bold")
    for knob in group.particular_knobs:
        yield Text.assemble(as_text(f"{knob}: ", "dim"), as_text(group.values_text(knob)))


def _crosses(group: WorkloadGroup) -> Iterator[RenderableType]:
    """What a machine loses with another's config."""
    if not group.crosses:
        return
    yield Text("")
    yield Text("with another machine's config", "bold")
    for cross in group.crosses:
        yield Text.assemble(as_text(f"{cross.machine} ", "dim"), as_text(cross.finding))
        yield from (_warning(note) for note in cross.notes)


# One cross.


def _sides_table(cross: Cross) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("config", overflow="fold")
    for heading in ("samples/s", "memory"):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("knobs that differ", overflow="fold")
    sides: list[tuple[str, Side | None]] = [
        (f"of {cross.config_of.machine}", cross.theirs),
        ("of this machine", cross.own),
        ("baseline", cross.baseline),
    ]
    for name, side in sides:
        if side is not None:
            table.add_row(as_text(name), *_side_cells(side, cross))
    return table


def _side_cells(side: Side, cross: Cross) -> Iterator[Text]:
    measured = side.measurement
    memory = None
    if measured is not None:
        memory = measured.host_memory_bytes if cross.device == "cpu" else measured.device_memory_bytes
    yield _rate_cell(
        measured.samples_per_second if measured is not None else None,
        measured.ci95_samples_per_second if measured is not None else None,
    )
    yield Text(NOT_KNOWN if memory is None else format_bytes(memory))
    others = [other for other in (cross.theirs, cross.own, cross.baseline) if other is not None]
    differing = {knob for other in others for knob in other.config.changes_from(cross.theirs.config)}
    values = side.config.model_dump()
    yield as_text(", ".join(f"{knob}={knob_text(knob, values[knob])}" for knob in values if knob in differing))


def _verdict(cross: Cross, theirs: str) -> Iterator[Text]:
    if not cross.ran:
        yield Text.assemble((f"the config of {theirs} cannot train here: ", "bold red"), as_text(str(cross.failure)))
        return
    if cross.over_own is not None:
        ratio = f"here it runs at {ratio_with_interval(cross.over_own)} of this machine's own config"
        yield Text.assemble(as_text(ratio, "bold"), as_text(f": it {gain_text(cross.over_own)}"))
    elif cross.same_config:
        yield as_text("this machine's own config is the same", "bold")
    else:
        yield as_text(f"not compared with this machine's own config: {cross.over_own_reason}", "bold")
    if cross.over_baseline is not None:
        yield as_text(f"over the baseline it is {ratio_with_interval(cross.over_baseline)}")
    else:
        yield as_text(f"not compared with the baseline: {cross.over_baseline_reason}")
