"""What an agent is answered: the figures of the terminal's tables with their intervals, and what to do next."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field
from rich.console import Console, RenderableType

from autotune.commands.tuning_result import LONGER
from autotune.hardware import Hardware
from autotune.knobs import Space
from autotune.measuring import Interval, Speedup
from autotune.results import summary
from autotune.results.check import Check
from autotune.results.compare import Comparison
from autotune.results.result import Result, Side, TrialRecord
from autotune.scripts.seen import SeenScript
from autotune.units import format_seconds

COLUMNS = 120
"""Of text that is read by a program: tables need not be folded for a terminal."""


class Estimate(BaseModel):
    """A figure and its 95 % interval."""

    value: float
    low: float | None = Field(description="of the 95 % interval; null where there is none")
    high: float | None = Field(description="of the 95 % interval; null where there is none")


class Ratio(Estimate):
    """A ratio of speeds; above 1 is faster."""

    pairs: int = Field(description="of processes that trained in turn; fewer than 3 show nothing")


class Changed(BaseModel):
    """A setting that was changed."""

    knob: str
    before: str
    after: str
    worth: Ratio | None = Field(description="what it gains by itself; null where there was no time to measure it")


class Answer(BaseModel):
    """What every answer has."""

    answer: str = Field(description="in one sentence")
    next: list[str] = Field(description="what to do next, the most useful first")


class ProbeAnswer(Answer):
    """What the machine has."""

    hardware: Hardware


class Tried(BaseModel):
    """The values of a setting that would be tried."""

    values: list[Any]
    why: str


class DryRunAnswer(Answer):
    """What was seen, and what would be tried."""

    seen: dict[str, Any] = Field(description="of a script: its loop, as it was found; empty for a build()")
    baseline: dict[str, Any] = Field(description="the settings that are trained with today")
    effective_batch: int | None = Field(description="that every candidate holds; null: free")
    would_try: dict[str, Tried]
    would_leave: dict[str, str] = Field(description="setting: why it is not searched")
    notes: list[str]


class ResultAnswer(Answer):
    """A result."""

    status: Literal["complete", "partial"]
    stopped_by: str
    confirmed: bool = Field(description="whether it is faster beyond doubt; else train as before")
    speedup: Ratio | None
    reason: str = Field(description="how sure that is, or why there is no confirmed speed-up")
    before: Estimate | None = Field(description="samples per second of the baseline")
    after: Estimate | None = Field(description="samples per second of the best")
    changes: list[Changed]
    numerics: str | None = Field(description="whether it still trains the same thing")
    bottleneck: str | None
    advice: list[str]
    notes: list[str]
    file: str | None = Field(description="the result file; null where none could be written")
    report: str | None = Field(description="an HTML page beside it")
    diff: str | None = Field(description="a patch of the script, where one was tuned and can be changed")
    bursts: list[TrialRecord] | None = Field(description="every burst with its reason, where that was asked for")


class CheckAnswer(Answer):
    """Whether a result still holds."""

    verdict: Literal["holds", "drifted", "no longer fits"]
    reason: str
    claimed: Ratio | None = Field(description="speed-up in the file")
    found: Ratio | None = Field(description="speed-up here and now")
    differences: list[str]


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


def of_look(seen: SeenScript | None, space: Space, notes: Sequence[str]) -> DryRunAnswer:
    """A look at a script or a model."""
    known = dataclasses.asdict(seen) if seen is not None else {}
    searched = [*space.choices, *space.parameters]
    return DryRunAnswer(
        answer=f"would search {len(searched)} settings: {', '.join(searched) or 'none'}",
        next=[
            "tune: run with the same arguments, and a budget such as 10m",
            "leave out what must not change with pin, or search less with only",
        ]
        if searched
        else ["look at would_leave for the reasons; free the effective batch, or give up pins and only"],
        seen=known,
        baseline=space.baseline.model_dump(mode="json"),
        effective_batch=space.effective_batch,
        would_try={knob: Tried(values=[*choice.values], why=choice.reason) for knob, choice in space.choices.items()}
        | {name: Tried(values=[*values], why="asked for") for name, values in space.parameters.items()},
        would_leave=dict(space.skipped),
        notes=[*notes],
    )


def of_result(
    result: Result, path: Path | None, page: Path | None = None, *, notes: Sequence[str] = (), bursts: bool = False
) -> ResultAnswer:
    """A result, just found or read from its file."""
    found = summary.verdict(result)
    diff = _diff_of(result, path)
    worth = {row.knob: _ratio(row.ratio, row.ci95, row.pairs) for row in result.ablation}
    return ResultAnswer(
        answer=f"{summary.title(result)}: {found.words}: {found.reason}",
        next=_next_of_result(result, path, diff),
        status=result.status,
        stopped_by=result.stopped_by,
        confirmed=found.confirmed,
        speedup=_speedup(result.speedup),
        reason=found.reason,
        before=_rate(result.baseline),
        after=_rate(result.best),
        changes=[
            Changed(knob=knob, before=before, after=after, worth=worth.get(knob))
            for knob, before, after, _ in summary.changes(result)
        ],
        numerics=summary.numerics_text(result),
        bottleneck=result.diagnosis.bottleneck,
        advice=[*result.diagnosis.advice],
        notes=[*([result.ignored] if result.ignored is not None else []), *result.search.notes, *notes],
        file=str(path.resolve()) if path is not None else None,
        report=str(page.resolve()) if page is not None else None,
        diff=str(diff.resolve()) if diff is not None else None,
        bursts=[*result.trials] if bursts else None,
    )


def of_check(check: Check, file: Path) -> CheckAnswer:
    """A check."""
    todo = {
        "holds": [f"train with it as {file} says: show tells how"],
        "drifted": ["tune again: run with the same model or command, and warm_start with this file"],
        "no longer fits": ["free memory, or tune again: run with the same model or command"],
    }
    longer = ["give check a longer budget for a narrower interval"]
    return CheckAnswer(
        answer=f"{file}: {check.verdict}: {check.reason}",
        next=[*todo[check.verdict], *longer],
        verdict=check.verdict,
        reason=check.reason,
        claimed=_speedup(check.claimed),
        found=_speedup(check.found),
        differences=[*check.differences],
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


def _rate(side: Side) -> Estimate | None:
    if side.measurement is None:
        return None
    low, high = summary.rate_interval(side)
    ends = (low, high) if high else (None, None)
    return Estimate(value=side.measurement.samples_per_second, low=ends[0], high=ends[1])


def _speedup(speedup: Speedup | None) -> Ratio | None:
    return _ratio(speedup.ratio, speedup.ci95, speedup.pairs) if speedup is not None else None


def _ratio(ratio: float, ci95: Interval, pairs: int) -> Ratio:
    return Ratio(value=ratio, low=ci95.low, high=ci95.high, pairs=pairs)
