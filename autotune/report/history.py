"""The section on the search: every burst, failures included, why each was run, and what was not searched."""

from __future__ import annotations

from collections import Counter

from autotune.report.blocks import Block, Bullets, Folded, Pair, Picture, Section, Table, Text
from autotune.report.scatters import MOST_MARKS, history_picture
from autotune.results.result import Result, TrialRecord
from autotune.results.summary import bare_rate, knob_text, search_text, warm_start_text
from autotune.units import format_bytes, format_rate, format_seconds
from autotune.wording import percent, ratio_text

HEADINGS = ("burst", "stage", "outcome", "samples/s", "to before", "memory", "took", "changes and reason")
NUMERIC = frozenset({3, 4, 5, 6})


def history_section(result: Result) -> Section:
    """How the search went."""
    search = result.search
    blocks: list[Block] = [Text(f"{search_text(result)}.")]
    svg = history_picture(result)
    if svg is None:
        blocks.append(Text("This file does not say which bursts were run.", "note"))
    else:
        legend = (
            "dot: samples/s of a burst; hollow: disturbed; cross: failed; solid line: fastest so far; dashed: before"
        )
        if len(result.trials) > MOST_MARKS:
            legend += f"; of more than {MOST_MARKS:,} bursts, every n-th is drawn"
        table = Table("All bursts, in the order in which they ran", HEADINGS, _rows(result), NUMERIC, wide=True)
        blocks.append(Pair(Picture(svg, _finding(result), legend), _stages_table(result)))
        blocks.append(Folded("All bursts, with their reasons", (table,)))
    if search.noisy:
        drift = f"its speed moved by {percent(search.drift)} during the search, so intervals were widened"
        blocks.append(Text(f"the machine was not steady: {drift}.", "warning", "warning"))
    if search.warm_start:
        blocks.append(Bullets(tuple(warm_start_text(record) for record in search.warm_start), "Warm start"))
    if search.skipped_knobs:
        skipped = Table("Knobs, and why they were not searched", ("knob", "why"), tuple(search.skipped_knobs.items()))
        blocks.append(Folded(f"Knobs that were not searched: {len(search.skipped_knobs)}", (skipped,)))
    if search.notes:
        blocks.append(Bullets(search.notes, "Notes"))
    return Section("history", "Every burst of the search", "Bursts", tuple(blocks))


def _finding(result: Result) -> str:
    rates = [trial.samples_per_second for trial in result.trials if trial.samples_per_second is not None]
    fastest = f"; the fastest ran at {format_rate(max(rates))}" if rates else ""
    return f"{len(result.trials)} bursts, {len(result.trials) - len(rates)} of them failed{fastest}."


def _stages_table(result: Result) -> Table:
    """Which stage of the search ran how many bursts, and how far it came."""
    rows = []
    for stage in dict.fromkeys(trial.stage for trial in result.trials):
        trials = [trial for trial in result.trials if trial.stage == stage]
        rates = [trial.samples_per_second for trial in trials if trial.samples_per_second is not None]
        failed = Counter(trial.outcome.value for trial in trials if trial.samples_per_second is None)
        failures = ", ".join(f"{count} {outcome}" for outcome, count in failed.items()) or "0"
        rows.append((stage, str(len(trials)), failures, bare_rate(max(rates)) if rates else "–"))
    headings = ("stage", "bursts", "failed", "fastest")
    return Table("The search's stages, samples/s", headings, tuple(rows), numeric=frozenset({1, 2, 3}))


def _rows(result: Result) -> tuple[tuple[str, ...], ...]:
    base = result.baseline.measurement.samples_per_second if result.baseline.measurement is not None else None
    return tuple(_row(number, trial, base) for number, trial in enumerate(result.trials, 1))


def _row(number: int, trial: TrialRecord, base: float | None) -> tuple[str, ...]:
    rate = trial.samples_per_second
    changes = " ".join(f"{knob}={knob_text(knob, value)}" for knob, value in trial.changes.items())
    why = [changes or "baseline", trial.reason]
    if trial.compile_seconds is not None:
        why.append(f"compiling took {format_seconds(trial.compile_seconds)}")
    if trial.disturbance is not None:
        why.append(f"disturbed: {trial.disturbance}")
    if trial.failure is not None:
        why.append(f"failed: {trial.failure}")
    return (
        str(number),
        trial.stage,
        trial.outcome.value,
        "–" if rate is None else bare_rate(rate),
        ratio_text(rate / base) if rate is not None and base else "–",
        "–" if trial.memory_bytes is None else format_bytes(trial.memory_bytes),
        format_seconds(trial.seconds),
        "\n".join(why),
    )
