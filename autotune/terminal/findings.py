"""The doctor's output: a line for each check, and a verdict."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.doctor.findings import TEN, Examination, Finding
from autotune.units import format_seconds
from autotune.wording import as_text

_STYLES = {"ok": "green", "does not hold": "bold red", "not here": "dim"}
_WIDTH = 15
SLOW_SECONDS = 1.0
"""A check that takes longer shows its duration. Not tuned."""


def finding_line(finding: Finding) -> RenderableType:
    """One check: what it found, and the remedy if it does not hold."""
    line = Text.assemble(
        (finding.status.ljust(_WIDTH), _STYLES[finding.status]), as_text(f"{finding.name}: "), as_text(finding.found)
    )
    if finding.seconds >= SLOW_SECONDS:
        line.append(f"  {format_seconds(finding.seconds)}", "dim")
    line.overflow = "fold"
    return Group(line, as_text(f"{' ' * _WIDTH}→ {finding.remedy}")) if finding.remedy else line


def examination_lines(examination: Examination, machine: str, path: Path, *, is_read: bool) -> RenderableType:
    """The ten points, the verdict, the knobs that the search leaves out here, and the number of checks.

    Args:
        examination: All findings.
        machine: The machine's name.
        path: The file of the findings.
        is_read: Whether tunings read that file.
    """
    failed = [finding for finding in examination.findings if finding.status == "does not hold"]
    if not examination.trusted:
        verdict = as_text(f"\n{machine}: measurements here cannot be trusted", "bold red")
    elif failed:
        verdict = as_text(
            f"\n{machine}: tuning can be trusted, apart from the checks above that do not hold", "bold yellow"
        )
    else:
        verdict = as_text(f"\n{machine}: tuning can be trusted", "bold green")
    left_out = ", ".join(f"{drop.knob}={drop.value}" for drop in examination.drops)
    checks = f"{len(examination.findings)} checks in {format_seconds(examination.seconds)}"
    ten = Text("\n").join(
        Text.assemble((status.ljust(_WIDTH), _STYLES[status]), as_text(f"{number:2}  {name}"))
        for number, (name, status) in enumerate(zip(TEN, examination.ten, strict=True), 1)
    )
    parts = [as_text("\nthe ten points that verify a device:"), ten, verdict, as_text(f"{checks}; kept in {path}")]
    if left_out:
        unless = "" if is_read else "; tunings do not read this file: run doctor without --out"
        parts.insert(-1, as_text(f"left out of the search here: {left_out}{unless}"))
    return Group(*parts)
