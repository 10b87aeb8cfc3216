"""The section on the search: every burst with its reason, including failures, and the knobs that were not searched."""

from __future__ import annotations

from collections import Counter

from autotune.report.blocks import Block, Bullets, Folded, Pair, Picture, Table, Text
from autotune.report.scatters import MOST_MARKS, history_picture
from autotune.results.result import Result, TrialRecord
from autotune.results.summary import search_text, settings_text, trial_notes, warm_start_text
from autotune.units import format_bytes, format_seconds
from autotune.wording import or_dash, ratio_text


def history(result: Result) -> list[Block]:
    """The course of the search."""
    search, unit = result.search, result.objective.unit
    blocks: list[Block] = [Text(f"{search_text(result)}.")]
    svg = history_picture(result)
    if not result.trials:
        blocks.append(Text("This file does not say which bursts were run.", "note"))
    else:
        legend = f"dot: {unit} of a burst; hollow: disturbed; cross: failed; solid line: best so far; dashed: before"
        if len(result.trials) > MOST_MARKS:
            legend += f"; there are more than {MOST_MARKS:,} bursts, so only every n-th is drawn"
        headings = ("burst", "turn", "stage", "outcome", unit, "vs before", "memory", "time", "changes and reason")
        rows = tuple(_row(result, number, trial) for number, trial in enumerate(result.trials, 1))
        table = Table("All bursts, in the order in which they ran", headings, rows, frozenset(range(4, 8)), wide=True)
        stages, finding = _stages_table(result), _finding(result)
        blocks += [Text(finding), stages] if svg is None else [Pair(Picture(svg, finding, legend), stages)]
        blocks.append(Folded("All bursts, with their reasons", (table,)))
    if search.warm_start:
        blocks.append(Bullets(tuple(warm_start_text(record) for record in search.warm_start), "Warm start"))
    if search.skipped_knobs:
        skipped = Table("Knobs, and why they were not searched", ("knob", "why"), tuple(search.skipped_knobs.items()))
        blocks.append(Folded(f"Knobs that were not searched: {len(search.skipped_knobs)}", (skipped,)))
    if search.notes:
        blocks.append(Bullets(search.notes, "Notes"))
    return blocks


def _finding(result: Result) -> str:
    scores = [score for trial in result.trials if (score := result.score_of(trial)) is not None]
    best = f"; the best reached {result.objective.format(max(scores))}" if scores else ""
    failed = sum(not trial.ok for trial in result.trials)
    return f"{len(result.trials)} bursts, {failed} of them failed{best}."


def _stages_table(result: Result) -> Table:
    """Bursts, failures and best score of each stage of the search."""
    rows = []
    for stage in dict.fromkeys(trial.stage for trial in result.trials):
        trials = [trial for trial in result.trials if trial.stage == stage]
        scores = [score for trial in trials if (score := result.score_of(trial)) is not None]
        failed = Counter(trial.outcome.value for trial in trials if not trial.ok)
        failures = ", ".join(f"{count} {outcome}" for outcome, count in failed.items()) or "0"
        rows.append((stage, str(len(trials)), failures, result.objective.bare(max(scores)) if scores else "–"))
    headings = ("stage", "bursts", "failed", "best")
    return Table(f"The search's stages, {result.objective.unit}", headings, tuple(rows), numeric=frozenset({1, 2, 3}))


def _row(result: Result, number: int, trial: TrialRecord) -> tuple[str, ...]:
    why = [settings_text(trial.changes) or "baseline", trial.reason, *trial_notes(trial)]
    if trial.failure is not None:
        why.append(f"failed: {trial.failure}")
    return (
        str(number),
        or_dash(trial.turn, str),
        trial.stage,
        trial.outcome.value,
        or_dash(result.score_of(trial), result.objective.bare),
        or_dash(result.compared(trial), ratio_text),
        or_dash(trial.memory_bytes, format_bytes),
        format_seconds(trial.seconds),
        "\n".join(why),
    )
