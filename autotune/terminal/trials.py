"""Every burst of a result, with the reason for which it was run: what the search thought."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.knobs import format_scalar
from autotune.results.result import Result, TrialRecord
from autotune.units import format_seconds
from autotune.wording import as_text, ratio_text


def trials_table(result: Result) -> RenderableType:
    """A row a burst, in the order in which they ran, under a heading for each stage."""
    title = as_text(f"{result.workload.name} ({result.workload.target}): {len(result.trials)} bursts", "bold")
    if not result.trials:
        return Group(title, as_text("this file does not say which bursts were run"))
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    figure = "rate" if result.objective.is_rate else "score"
    for heading, justify in (("#", "right"), (figure, "right"), ("", "right"), ("what and why", "left")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    base, stage = result.score_of(result.baseline), ""
    for number, trial in enumerate(result.trials, 1):
        if trial.stage != stage:
            stage = trial.stage
            table.add_row("", "", "", as_text(stage, "bold"))
        table.add_row(str(number), *_figures(result, trial, base), _what_and_why(trial))
    return Group(title, table)


def _figures(result: Result, trial: TrialRecord, base: float | None) -> tuple[Text, Text]:
    score = result.score_of(trial)
    if score is None:
        return as_text(trial.outcome.value, "red"), Text()
    return as_text(result.objective.format(score)), as_text(ratio_text(score / base) if base else "")


def _what_and_why(trial: TrialRecord) -> Text:
    changes = " ".join(f"{knob}={format_scalar(value)}" for knob, value in trial.changes.items()) or "baseline"
    parts: list[str | Text] = [as_text(changes), "\n", as_text(trial.reason, "dim")]
    if trial.compile_seconds is not None:
        parts += [as_text(f"; compiling took {format_seconds(trial.compile_seconds)}", "dim")]
    if trial.disturbance is not None:
        parts += [as_text(f"; disturbed: {trial.disturbance}", "yellow")]
    if trial.failure is not None:
        parts += ["\n", as_text(trial.failure, "red")]
    return Text.assemble(*parts)
