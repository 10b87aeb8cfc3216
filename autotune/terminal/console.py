"""Pure functions that turn records into terminal output; the command line prints it.

A command that shows something prints it to stdout. One that tunes, trains, checks or patches prints to stderr. With
``--json`` stdout holds only JSON.
Text from the user or a file goes into `Text` through `as_text`, never into markup, so that "[bold]" in a name stays
"[bold]".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from autotune.errors import AutotuneError
from autotune.hardware import Hardware, hardware_rows
from autotune.measuring import objective_named
from autotune.results import summary
from autotune.results.check import Check
from autotune.results.result import Result, TrialRecord
from autotune.results.summary import operators, sample_parts, settings_text, skipped_lines, trial_notes, turn_text
from autotune.results.trainings import read_trainings
from autotune.wording import as_text, labelled, or_dash, ratio_text


def make_console(*, stderr: bool = True) -> Console:
    """A console that survives its terminal, without rich's own colouring of numbers; on stderr by default."""
    return lasting(Console(stderr=stderr, highlight=False))


def plain_table(*columns: Column | str) -> Table:
    """An empty table without borders."""
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def hardware_table(hardware: Hardware) -> RenderableType:
    """One machine: its hardware, its measured peaks, and what could not be read."""
    grid = Table.grid(Column(no_wrap=True, style="bold"), Column(overflow="fold"), padding=(0, 2))
    for label, lines in hardware_rows(hardware):
        for number, line in enumerate(lines):
            grid.add_row("" if number else label, as_text(line))
    return Group(as_text(f"{hardware.hostname}\n", "bold"), grid)


def result_table(result: Result) -> RenderableType:
    """One result: before and after, the changed knobs and their worth, and what limits the training now."""
    parts: list[RenderableType] = [as_text(summary.title(result), "bold")]
    parts += [as_text(f"({result.ignored})", "dim")] if result.ignored is not None else []
    if (why := summary.unfinished(result)) is not None:
        parts.append(as_text(f"PARTIAL: {why}", "bold yellow"))
    confirmed, words, reason = summary.verdict(result)
    parts += ["", _before_after(result), "", labelled(words, reason, "bold green" if confirmed else "bold yellow")]
    parts += map(as_text, (*summary.proof_texts(result), *summary.remarks(result)))
    return Group(*parts, *_numerics_lines(result), *_diagnosis_lines(result), *_search_lines(result))


def usage_lines(result: Result, path: Path, page: Path | None = None) -> RenderableType:
    """The paths of a result and of its report, if it has one, and what to do next.

    Printed with `crop=False`, its lines stay whole, to be copied.
    """
    places = [labelled("result file", str(path), "", "bold")]
    if page is not None:
        places.append(labelled("report", str(page), "", "bold"))
    code, sentences = summary.what_next(result, path)
    lines = [as_text(f"    {line}", "cyan") for line in code.splitlines()]
    shown = [*places, *map(as_text, ["train with it:"] * bool(code)), *lines, *map(as_text, sentences)]
    for line in shown:
        line.no_wrap, line.overflow = True, "ignore"
    return Group(*shown)


def training_lines(result: Result, path: Path) -> RenderableType:
    """What the recorded trainings with a result have reached."""
    trainings = read_trainings(result, path)
    return Group(*map(as_text, trainings.sentences() if trainings is not None else ()))


def check_lines(check: Check) -> RenderableType:
    """Whether a result still holds: the speed-up now beside the one in the file."""
    style = {"holds": "bold green", "no longer fits": "bold red"}.get(check.verdict, "bold yellow")
    parts: list[RenderableType] = [labelled(check.verdict, check.reason, style)]
    for when, speedup in (("in the file", check.claimed), ("here and now", check.found)):
        if speedup is not None:
            figures = f"{ratio_text(speedup.ratio)} ({summary.spread_text(speedup)})"
            parts.append(as_text(f"{objective_named(check.objective).gain} {when}: {figures}"))
    if check.trainings is not None:
        parts.append(as_text(check.trainings))
    return Group(*parts, *(labelled("warning", difference) for difference in check.differences))


def error_lines(error: AutotuneError) -> RenderableType:
    """An error in one sentence, and the user's own frames when their code raised."""
    line = labelled("error", str(error), "bold red")
    trace = getattr(error, "trace", None)
    return Group(as_text(trace.rstrip(), "dim"), line) if trace else line


# One result.


def _before_after(result: Result) -> Table:
    changed = summary.changes(result)
    table = plain_table(Column("", no_wrap=True), Column("before", overflow="fold"), Column("after", overflow="fold"))
    if any(change.worth for change in changed):
        table.add_column("worth")
    for label, before, after, part_of in summary.figures(result):
        table.add_row(f"  {label}" if part_of else label, as_text(before), as_text(after))
    table.add_row("")
    table.add_row(Text("changed knobs", "bold") if changed else "no knob was changed")
    for knob, before, after, worth in changed:
        table.add_row(as_text(knob), as_text(before), as_text(after, "green"), worth)
    return table


def _numerics_lines(result: Result) -> Iterator[Text]:
    if result.numerics is not None:
        yield as_text(f"numerics: {summary.numerics_text(result)}")
        yield from (labelled("warning", note) for note in result.numerics.notes)


def _diagnosis_lines(result: Result) -> Iterator[Text]:
    diagnosis = result.diagnosis
    yield as_text(f"bottleneck: {summary.bottleneck_text(result)}")
    if diagnosis.headroom is not None:
        yield as_text(summary.headroom_text(diagnosis.headroom))
    if (ceilings := summary.ceilings_text(result)) is not None:
        yield as_text(ceilings)
    if peaks := summary.peak_texts(result):
        yield as_text("\n  ".join(("is this speed normal?", *peaks)))
    for line in summary.growth_texts(result):
        yield labelled("watch out", line)
    for advice in diagnosis.advice:
        yield as_text(f"advice: {advice}")


def _search_lines(result: Result) -> Iterator[Text]:
    search = result.search
    yield as_text(summary.search_text(result), "dim")
    for line in summary.skipped_lines(result, every=False):
        yield as_text(f"not searched: {line}", "dim")
    for record in search.warm_start:
        yield as_text(summary.warm_start_text(record))
    for note in search.notes:
        yield labelled("note", note)


def step_line(machine: str, text: str) -> Text:
    """One step of a machine, with the time of day, since fleets run for a long time."""
    return Text.assemble((f"{datetime.now():%H:%M:%S} ", "dim"), labelled(machine, text, "bold"))


def ending_lines(outcome: str, reason: str, log: str) -> RenderableType:
    """A machine that failed: the last lines of its job, then what it did not do, and the reason."""
    last = [as_text(line, "dim") for line in log.rstrip().splitlines()[-8:]]
    return Group(*last, labelled(outcome, reason, "bold red"))


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
    heading = ""
    turns: dict[int | None, list[TrialRecord]] = {}
    for trial in result.trials:
        turns.setdefault(trial.turn, []).append(trial)
    headings: dict[int | None, str] = {turn: turn_text(playing) for turn, playing in turns.items() if turn is not None}
    for number, trial in enumerate(result.trials, 1):
        if (own := headings.get(trial.turn, trial.stage)) != heading:
            heading = own
            table.add_row("", "", "", as_text(heading, "bold"))
        ratio = result.compared(trial)
        figure = as_text(or_dash(result.score_of(trial), result.objective.format))
        if not trial.ok:
            figure = as_text(trial.outcome.value, "red")
        table.add_row(str(number), figure, "" if ratio is None else ratio_text(ratio), _what_and_why(trial))
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
    changes = settings_text(trial.changes) or "baseline"
    parts: list[str | Text] = [as_text(changes), "\n", as_text("; ".join([trial.reason, *trial_notes(trial)]), "dim")]
    if trial.failure is not None:
        parts += ["\n", as_text(trial.failure, "red")]
    return Text.assemble(*parts)


def lasting(console: Console) -> Console:
    """The same console, made to drop what it can no longer write (a closed terminal or pipe)."""
    if not isinstance(console.file, _LastingStream):
        console.file = cast("IO[str]", _LastingStream(console.file))
    return console


def abandon(stream: IO[str]) -> None:
    """Redirects a stream to the null device: its buffered text would otherwise fail at exit, with status 120."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor buffers nothing
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _LastingStream:
    r"""A text stream that spells out what its encoding lacks (``\xd7``), and drops what cannot be written.

    The stream itself is guarded, rather than each print, since rich also writes from its own thread, and turns a broken
    pipe into SystemExit.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._try(lambda: self._write(text))
        return len(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:
            self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BlockingIOError:  # full for the moment
            pass
        except OSError:
            abandon(self._stream)
        except ValueError:  # Python raises it for a stream that was closed meanwhile
            if not self._stream.closed:
                raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
