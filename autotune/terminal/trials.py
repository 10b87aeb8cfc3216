"""The output of `show --why`: every burst with its reason, what was not searched, and where the time goes."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from autotune.knobs import format_scalar
from autotune.results.result import Result, TrialRecord
from autotune.results.summary import operators, sample_parts, skipped_lines, trial_notes, turn_text
from autotune.terminal.console import plain_table
from autotune.wording import as_text, ratio_text


def trials_table(result: Result) -> RenderableType:
    """One row per burst in the order of the run, under a heading for each stage and each turn; then skipped knobs."""
    title = as_text(f"{result.workload.name} ({result.workload.target}): {len(result.trials)} bursts", "bold")
    skipped = [as_text(line, "dim") for line in skipped_lines(result, every=True)]
    skipped = [as_text("not searched", "bold"), *skipped] if skipped else []
    if not result.trials:
        return Group(title, as_text("this file does not say which bursts were run"), *skipped)
    figures = ("#", "rate" if result.objective.is_rate else "score", "")
    columns = [Column(heading, justify="right", overflow="fold") for heading in figures]
    table = plain_table(*columns, Column("what and why", overflow="fold"))
    base, heading = result.score_of(result.baseline), ""
    for number, trial in enumerate(result.trials, 1):
        if (own := trial.stage if trial.turn is None else turn_text(result.trials, trial.turn)) != heading:
            heading = own
            table.add_row("", "", "", as_text(heading, "bold"))
        if (score := result.score_of(trial)) is None:
            table.add_row(str(number), as_text(trial.outcome.value, "red"), "", _what_and_why(trial))
        else:
            ratio = ratio_text(score / base) if base else ""
            table.add_row(str(number), result.objective.format(score), ratio, _what_and_why(trial))
    return Group(title, table, *skipped)


def profile_tables(result: Result) -> RenderableType:
    """The slowest operators and the time to read a sample; empty if no profile was taken."""
    if result.diagnosis.before is None and result.diagnosis.after is None:
        return Group()
    table = plain_table(Column(overflow="fold"), Column("before", justify="right"), Column("after", justify="right"))
    for row in operators(result):
        table.add_row(*map(as_text, row))
    parts: list[RenderableType] = ["", as_text("operators, time per sample", "bold"), table]
    if rows := sample_parts(result):
        table = Table.grid(padding=(0, 2, 0, 0))
        for number, (name, where, time) in enumerate(rows):
            table.add_row(as_text(f"  {name} ({where})" if number else name), as_text(time))
        parts += ["", table]
    return Group(*parts)


def _what_and_why(trial: TrialRecord) -> Text:
    changes = " ".join(f"{knob}={format_scalar(value)}" for knob, value in trial.changes.items()) or "baseline"
    parts: list[str | Text] = [as_text(changes), "\n", as_text("; ".join([trial.reason, *trial_notes(trial)]), "dim")]
    if trial.failure is not None:
        parts += ["\n", as_text(trial.failure, "red")]
    return Text.assemble(*parts)
