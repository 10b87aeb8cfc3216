"""What an agent gets: records as the package keeps them, a sentence about each, and what to do next."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rich.console import Console, RenderableType

from autotune.commands.tuning_result import LONGER
from autotune.hardware import Hardware
from autotune.knobs import Choices, Space
from autotune.results import summary
from autotune.results.check import Check
from autotune.results.compare import Comparison
from autotune.results.result import Result
from autotune.scripts.seen import SeenScript
from autotune.units import format_seconds

COLUMNS = 120
"""Width of a table in an answer: a program reads it, and no terminal folds it."""
_SIDE = {"measurement": {"blocks", "telemetry", "looks", "final_loss"}}
_LEFT_OUT: Any = {
    "trials": True, "hardware": True, "software": True, "constraints": True, "workload": {"script", "model"},
    "baseline": _SIDE, "best": _SIDE, "search": {"skipped_knobs", "notes"}, "diagnosis": {"before", "after"},
}  # fmt: skip
"""Fields of a result that an answer leaves to its file: they are long, or an agent has no use for them."""


class Answer(BaseModel):
    """What every answer has."""

    answer: str = Field(description="in one sentence")
    next: list[str] = Field(description="what to do next, the most useful first")


class ProbeAnswer(Answer):
    """What the machine has."""

    hardware: Hardware


class DryRunAnswer(Answer):
    """What was seen, and what would be tried."""

    seen: dict[str, Any] = Field(description="of a script: its loop, as it was found; empty for a build()")
    files: str | None = Field(description="how a script's bursts are kept from your files; null for a build()")
    baseline: dict[str, Any] = Field(description="the settings that are trained with today")
    effective_batch: int | None = Field(description="that every candidate holds; null: free")
    would_try: dict[str, Choices]
    would_leave: dict[str, str] = Field(description="setting: why it is not searched")
    notes: list[str]


class ResultAnswer(Answer):
    """A result."""

    confirmed: bool = Field(description="whether the whole interval of the speed-up lies above 1; else train as before")
    changes: dict[str, tuple[Any, Any]] = Field(description="setting: before and after")
    result: dict[str, Any] = Field(description="the result file's main fields, as autotune schema describes them")
    notes: list[str]
    file: str | None = Field(description="the result file; null where none could be written")
    report: str | None = Field(description="an HTML page beside it")
    diff: str | None = Field(description="a patch of the script, where one was tuned and can be changed")


class CheckAnswer(Answer, Check):
    """Whether a result still holds."""


class CompareAnswer(Answer):
    """Results side by side."""

    comparison: Comparison


def plain(*parts: RenderableType) -> str:
    """What a terminal would show, without colours."""
    console = Console(file=io.StringIO(), width=COLUMNS, color_system=None, force_terminal=False, highlight=False)
    console.print(*parts, sep="\n")
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def of_probe(hardware: Hardware) -> ProbeAnswer:
    """The machine."""
    device = hardware.default_device
    return ProbeAnswer(
        answer=f"training would run on {device}: {hardware.machine(device)}",
        next=[
            "see what would be tried: dry_run with a model or a command",
            "tune: run with a model or a command, and a budget such as 10m",
        ],
        hardware=hardware,
    )


def of_look(seen: SeenScript | None, space: Space, protects: str | None, notes: Sequence[str]) -> DryRunAnswer:
    """A look at a script or a model; `protects` says how files are protected."""
    searched = [*space.choices, *space.parameters]
    explored = {name: Choices(values, "you asked for them") for name, values in space.parameters.items()}
    return DryRunAnswer(
        answer=f"would search {len(searched)} settings: {', '.join(searched) or 'none'}",
        next=[
            "tune: run with the same arguments, and a budget such as 10m",
            "leave out what must not change with pin, or search less with only",
        ]
        if searched
        else ["look at would_leave for the reasons; free the effective batch, or give up pins and only"],
        seen=dataclasses.asdict(seen) if seen is not None else {},
        files=protects,
        baseline=space.baseline.model_dump(mode="json"),
        effective_batch=space.effective_batch,
        would_try={**space.choices, **explored},
        would_leave=dict(space.skipped),
        notes=[*notes],
    )


def of_result(
    result: Result, path: Path | None, page: Path | None = None, *, notes: Sequence[str] = (), bursts: bool = False
) -> ResultAnswer:
    """A result, just found or read from its file."""
    verdict = summary.verdict(result)
    diff = _diff_of(result, path)
    left_out = {field: what for field, what in _LEFT_OUT.items() if not (bursts and field == "trials")}
    return ResultAnswer(
        answer=f"{summary.title(result)}: {verdict.words}: {verdict.reason}",
        next=_next_of_result(result, path, diff),
        confirmed=verdict.confirmed,
        changes=result.changed_knobs,
        result=result.model_dump(mode="json", by_alias=True, exclude=left_out),
        notes=[*([result.ignored] if result.ignored is not None else []), *result.search.notes, *notes],
        file=str(path.resolve()) if path is not None else None,
        report=str(page.resolve()) if page is not None else None,
        diff=str(diff.resolve()) if diff is not None else None,
    )


def of_check(check: Check, file: Path) -> CheckAnswer:
    """A check."""
    todo = {
        "holds": [f"train with it as {file} says; show prints how"],
        "drifted": ["tune again: run with the same model or command, and warm_start with this file"],
        "no longer fits": ["free memory, or tune again: run with the same model or command"],
    }
    longer = ["give check a longer budget for a narrower interval"]
    return CheckAnswer(
        answer=f"{file}: {check.verdict}: {check.reason}", next=[*todo[check.verdict], *longer], **dict(check)
    )


def of_comparison(comparison: Comparison) -> CompareAnswer:
    """A comparison."""
    rows = sum(len(group.rows) for group in comparison.groups)
    return CompareAnswer(
        answer=f"{rows} results of {len(comparison.groups)} workloads",
        next=[
            "on a machine without a result: run with warm_start, given the result of a machine like it",
            "where a result is old: check it",
        ],
        comparison=comparison,
    )


def _diff_of(result: Result, path: Path | None) -> Path | None:
    """The script's patch beside its result, if there is one."""
    beside = path.with_suffix(".diff") if path is not None and result.workload.script is not None else None
    return beside if beside is not None and beside.is_file() else None


def _next_of_result(result: Result, path: Path | None, diff: Path | None) -> list[str]:
    if path is None:
        return ["free some space, or name another file with out, and run again"]
    again = f"run again with resume and a longer budget than {format_seconds(result.constraints.budget_seconds)}"
    if result.status == "partial":
        return [f"{again}: no burst is repeated", *_how_to_train(result, path)]
    never_trained = result.baseline.measurement is None and bool(result.changed_knobs)
    if not never_trained and (not result.changed_knobs or result.speedup is None or not result.speedup.confirmed):
        todo = [f"train as before; {result.speedup_reason or 'nothing was faster beyond doubt'}"]
        is_short = result.stopped_by == "budget" or LONGER in (result.speedup_reason or "")
        return [*todo, again] if is_short else [*todo, "look at advice for what only you can change"]
    kept = [f"or change the script itself, as {diff} says: autotune keep {path}"] if diff is not None else []
    return [*_how_to_train(result, path), *kept, "on another day or machine: check this file"]


def _how_to_train(result: Result, path: Path) -> list[str]:
    return [f"train with it:\n{summary.how_to_train(result, path)}"]
