"""Every line that a person sees, made from data by pure functions; printing them is the command line's part.

All of it goes to stderr, since stdout belongs to ``--json``. Whatever comes from the user or from a file is
put into `Text` through `as_text`, never into markup, so that "[bold]" in a name stays "[bold]".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.errors import AutotuneError
from autotune.results.check import Check
from autotune.results.result import Result
from autotune.results.summary import (
    break_even,
    ceilings_text,
    changes,
    figures,
    numerics_text,
    ratios,
    search_text,
    title,
    unfinished,
    usage_snippet,
    verdict,
    warm_start_text,
)
from autotune.terminal.hardware import hardware_table
from autotune.terminal.streams import lasting
from autotune.wording import as_text, ratio_text

__all__ = [
    "check_lines",
    "error_lines",
    "hardware_table",
    "make_console",
    "result_table",
    "usage_lines",
]


def make_console(*, stderr: bool = True) -> Console:
    """The console that everything is printed to but what was asked for; without rich's own colouring of numbers."""
    return lasting(Console(stderr=stderr, highlight=False))


def result_table(result: Result) -> RenderableType:
    """One result: before and after, what changed, what it was worth, and what limits the training now."""
    parts: list[RenderableType] = [as_text(title(result), "bold")]
    parts += [as_text(f"({note})", "dim") for note in result.file_notes]
    if (why := unfinished(result)) is not None:
        parts.append(as_text(f"PARTIAL: {why}", "bold yellow"))
    parts += ["", _before_after(result), "", _verdict_line(result)]
    if (won := break_even(result)) is not None:
        parts.append(as_text(won))
    parts += _numerics_lines(result)
    parts += list(_diagnosis_lines(result))
    parts += list(_search_lines(result))
    return Group(*parts)


def usage_lines(path: Path, page: Path | None = None) -> RenderableType:
    """Where a result lies, and its page, if it has one; and how to train with it."""
    places = [Text.assemble("result file: ", as_text(str(path), "bold"))]
    if page is not None:
        places.append(Text.assemble("report: ", as_text(str(page), "bold")))
    code = [as_text(f"    {line}", "cyan") for line in usage_snippet(path).splitlines()]
    return Group(*places, "train with it:", *code)


def check_lines(check: Check) -> RenderableType:
    """Whether a result still holds: the ratio now beside the one in the file."""
    style = {"holds": "bold green", "drifted": "bold yellow", "no longer fits": "bold red"}[check.verdict]
    parts: list[RenderableType] = [Text.assemble((check.verdict, style), as_text(f": {check.reason}"))]
    for when, speedup in (("in the file", check.claimed), ("here and now", check.found)):
        if speedup is not None:
            figure = f"{ratio_text(speedup.ratio)} (95 % interval {ratios(speedup.ci95)}, {speedup.pairs} pairs)"
            parts.append(as_text(f"speed-up {when}: {figure}"))
    parts += [_warning(difference) for difference in check.differences]
    return Group(*parts)


def error_lines(error: AutotuneError) -> RenderableType:
    """An error in one sentence, and the user's own frames when their code raised."""
    line = Text.assemble(("error: ", "bold red"), as_text(str(error)))
    trace = getattr(error, "trace", None)
    return Group(as_text(trace.rstrip(), "dim"), line) if trace else line


def _warning(text: str) -> Text:
    return Text.assemble(("warning: ", "yellow"), as_text(text))


# One result.


def _before_after(result: Result) -> Table:
    changed = changes(result)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("before", overflow="fold")
    table.add_column("after", overflow="fold")
    if any(change.worth for change in changed):
        table.add_column("worth")
    for label, before, after, of in figures(result):
        table.add_row(f"  {label}" if of else label, as_text(before), as_text(after))
    table.add_row("")
    table.add_row(Text("changed knobs", "bold") if changed else "no knob was changed")
    for knob, before, after, worth in changed:
        table.add_row(as_text(knob), as_text(before), as_text(after, "green"), worth)
    return table


def _verdict_line(result: Result) -> Text:
    confirmed, words, reason = verdict(result)
    return Text.assemble((f"{words}: ", "bold green" if confirmed else "bold yellow"), as_text(reason))


def _numerics_lines(result: Result) -> list[Text]:
    found = numerics_text(result)
    if found is None or result.numerics is None:
        return []
    return [as_text(f"numerics: {found}"), *(_warning(note) for note in result.numerics.notes)]


def _diagnosis_lines(result: Result) -> Iterator[Text]:
    diagnosis = result.diagnosis
    yield as_text(f"bottleneck: {diagnosis.bottleneck or 'not found'}")
    if (ceilings := ceilings_text(result)) is not None:
        yield as_text(ceilings)
    for advice in diagnosis.advice:
        yield as_text(f"advice: {advice}")


def _search_lines(result: Result) -> Iterator[Text]:
    search = result.search
    yield as_text(search_text(result), "dim")
    if search.skipped_knobs:
        skipped = ", ".join(f"{knob} ({why})" for knob, why in search.skipped_knobs.items())
        yield as_text(f"not searched: {skipped}", "dim")
    for record in search.warm_start:
        yield as_text(warm_start_text(record))
    for note in search.notes:
        yield Text.assemble(("note: ", "yellow"), as_text(note))
