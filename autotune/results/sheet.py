"""A comparison's tables as plain text, which the terminal, Markdown and HTML show in their own markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from autotune.measuring import Interval, objective_named
from autotune.results.compare import Row, WorkloadGroup
from autotune.results.summary import bare_rate, knob_text, ratios, settings_text
from autotune.units import format_bytes
from autotune.wording import ratio_text

NOT_KNOWN = "–"


@dataclass(frozen=True)
class Cell:
    """A figure; `below` it stands its interval or its subject."""

    text: str = NOT_KNOWN
    below: str = ""
    tone: Literal["plain", "good", "doubtful"] = "plain"


@dataclass(frozen=True)
class Line:
    """One result."""

    machine: str
    path: str
    about: tuple[str, ...]  # the date, then the torch version, and whether it is yours or like yours
    partial: bool  # tuning did not finish
    cells: tuple[Cell, ...]  # in the order of the headings
    changes: tuple[str, ...]  # of knobs, by tuning


@dataclass(frozen=True)
class Sheet:
    """One workload."""

    headings: tuple[str, ...]  # of the cells
    lines: tuple[Line, ...]  # the fastest first
    sharers: str  # ``shared by both machines``; empty with fewer than two
    shared: str  # knobs with one value on all machines
    particular: tuple[tuple[str, str], ...]  # other knobs, with the value on each machine
    choices: tuple[str, ...]  # sentences on where to train


EXTRA = {"per joule": "samples_per_joule", "per dollar": "samples_per_dollar"}
"""Columns that appear only where some machine has the figure."""


def sheet(group: WorkloadGroup) -> Sheet:
    """The table of a workload and the text below it, without crosses, which are sentences already."""
    extra = {word: field for word, field in EXTRA.items() if any(getattr(row, field) is not None for row in group.rows)}
    machines = "both machines" if group.machines == 2 else f"all {group.machines} machines"
    return Sheet(
        headings=("before", "after", "gain", "memory", *extra),
        lines=tuple(_line(row, extra.values()) for row in group.rows),
        sharers=f"shared by {machines}" if group.machines > 1 else "",
        shared=settings_text(group.shared_knobs, ", ") or "no changed knob",
        particular=tuple((knob, group.values_text(knob)) for knob in group.particular_knobs),
        choices=group.choices,
    )


def rate_cell(rate: float | None, ci95: Interval | None) -> Cell:
    """A rate with its interval."""
    if rate is None:
        return Cell()
    return Cell(bare_rate(rate), f"{bare_rate(ci95.low)} – {bare_rate(ci95.high)}" if ci95 is not None else "")


def _line(row: Row, extra: Iterable[str]) -> Line:
    return Line(
        machine=row.label,
        path=row.path,
        about=(f"{row.created:%Y-%m-%d}", *([f"torch {row.torch}"] if row.torch else []), *filter(None, [row.kin])),
        partial=row.status == "partial",
        cells=tuple(_cells(row, extra)),
        changes=tuple(
            f"{knob} {knob_text(knob, before)} → {knob_text(knob, after)}"
            for knob, (before, after) in row.changed_knobs.items()
        ),
    )


def _cells(row: Row, extra: Iterable[str]) -> Iterator[Cell]:
    yield rate_cell(row.before_samples_per_second, row.before_ci95)
    yield rate_cell(row.after_samples_per_second, row.after_ci95)
    if row.speedup is None:
        yield Cell("not confirmed", tone="doubtful")
    else:
        objective, ratio = objective_named(row.objective), ratio_text(row.speedup.ratio)
        sure = ratios(row.speedup.ci95) + ("" if objective.is_rate else f" in {objective.unit}")
        yield Cell(ratio, sure, "good") if row.speedup.confirmed else Cell(f"{ratio}, not confirmed", sure, "doubtful")
    yield Cell(format_bytes(row.memory_bytes), row.memory_of) if row.memory_bytes is not None else Cell()
    for field in extra:
        value = getattr(row, field)
        yield Cell(bare_rate(value)) if value is not None else Cell()
