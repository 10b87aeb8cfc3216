"""A comparison and the verdict of a check as Markdown, for a pull request, and a comparison as CSV."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune.knobs import KNOB_NAMES
from autotune.measuring import objective_named
from autotune.results.check import Check
from autotune.results.compare import Comparison, Row, WorkloadGroup
from autotune.results.sheet import Cell, Sheet, sheet
from autotune.results.summary import knob_text, settings_text, spread_text
from autotune.wording import ratio_text, spelled

_ESCAPES = (
    (re.compile(r"&"), "&amp;"),
    (re.compile(r"([\\`*\[\]|~$])"), r"\\\1"),
    (re.compile(r"(?<![^\W_])_|_(?![^\W_])"), r"\\_"),  # harmless between letters: batch_size
    (re.compile(r"<"), "&lt;"),
    (re.compile(r">"), "&gt;"),
    (re.compile(r"@(?=\w)"), "&#64;"),  # would call a person
    (re.compile(r":(?=[\w+-]+:)"), "&#58;"),  # would become an emoji
    (re.compile(r"^(\d+)(?=[.)]\s)"), r"\1\\"),  # would begin a list, a heading or a quotation
    (re.compile(r"^(?=[#+=-])"), r"\\"),
)
"""Escapes for text that Markdown, HTML or GitHub would not show literally."""
_FORMULA_STARTS = ("=", "+", "-", "@")
CSV_COLUMNS = (
    "file", "workload", "target", "fingerprint", "machine", "hostname", "device", "torch", "created", "status",
    "before_samples_per_second", "before_ci95_low", "before_ci95_high",
    "after_samples_per_second", "after_ci95_low", "after_ci95_high",
    "objective", "speedup", "speedup_ci95_low", "speedup_ci95_high", "speedup_pairs", "speedup_confirmed",
    "speedup_reason",
    "memory_bytes", "memory_of", "samples_per_joule", "dollars_per_hour", "samples_per_dollar", "changed_knobs",
)  # fmt: skip
"""The first columns; one column for each knob of the best config follows."""
LEGEND = (
    "Before and after are samples per second; per joule and per dollar are samples for each joule of the device and "
    "each dollar of the machine's price. The gain, a ratio of rates unless a unit stands below it, comes from "
    "interleaved pairs of runs. Below each figure stands its 95 % interval. Memory is the peak of the tuned config."
)


def to_markdown(comparison: Comparison, relative_to: Path | None = None) -> str:
    """Markdown that GitHub shows well: a heading and a table for each workload, then the warnings.

    Args:
        comparison: The comparison.
        relative_to: The folder of the Markdown file, for links to the result files; None: no links.
    """
    lines = ["# Tuned by autotune", "", LEGEND, ""]
    for group in comparison.groups:
        lines += [f"## {_escaped(group.name)}", "", f"`{_code(group.target)}`", ""]
        tables = sheet(group)
        lines += [*_table(tables, relative_to), "", *_knob_lines(tables), *_cross_section(group, relative_to)]
    if not comparison.groups:
        lines += ["No results to compare.", ""]
    for heading, sentences in (("Warnings", comparison.warnings), ("Left out", comparison.problems)):
        if sentences:
            lines += [f"## {heading}", "", *(f"- {_escaped(sentence)}" for sentence in sentences), ""]
    return "\n".join(lines)


def check_markdown(check: Check) -> str:
    """The verdict of `autotune check`, for a comment on a pull request."""
    lines = [f"### autotune: {check.verdict}", "", f"`{_code(check.target)}`: {_escaped(check.reason)}.", ""]
    gains = [("in the file", check.claimed), ("here and now", check.found)]
    rows = [
        f"| {when} | {ratio_text(it.ratio)} | {_escaped(spread_text(it))} |" for when, it in gains if it is not None
    ]
    if rows:
        lines += [f"| | {objective_named(check.objective).gain} | how certain |", "|---|---|---|", *rows, ""]
    remarks = [*filter(None, [check.trainings]), *check.differences]
    return "\n".join([*lines, *(f"- {_escaped(remark)}" for remark in remarks)])


def to_csv(comparison: Comparison) -> str:
    """CSV with one row per result, all digits, and units in the header; no spreadsheet takes its text for formulas."""
    rows = [(group, row) for group in comparison.groups for row in group.rows]
    knobs = dict.fromkeys((*KNOB_NAMES, *(knob for _, row in rows for knob in row.knobs)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*CSV_COLUMNS, *(_harmless(f"knob:{knob}") for knob in knobs)])
    for group, row in rows:
        values = [*_fields(group, row), *(_knob_field(row, knob) for knob in knobs)]
        writer.writerow([_harmless(value) for value in values])
    return out.getvalue()


# Markdown.


def _table(tables: Sheet, folder: Path | None) -> Iterator[str]:
    yield _table_line(["machine", *tables.headings, "changed knobs", "measured"])
    yield _table_line(["---", *["---:"] * len(tables.headings), "---", "---"])
    for line in tables.lines:
        changes = "<br>".join(map(_escaped, line.changes)) or "none"
        when = [_linked(line.about[0], line.path, folder), *map(_escaped, line.about[1:])]
        when += ["**partial**"] if line.partial else []
        yield _table_line([_escaped(line.machine), *map(_cell, line.cells), changes, "<br>".join(when)])


def _table_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.tone == "good" else cell.text
    return f"{text}<br>{cell.below}" if cell.below else text


def _knob_lines(tables: Sheet) -> Iterator[str]:
    """Where to train, the knobs that all machines agree on, and those that differ."""
    if tables.choices:
        yield from (f"- {_escaped(choice)}" for choice in tables.choices)
        yield ""
    if tables.sharers:
        yield from (f"**{tables.sharers.capitalize()}:** {_escaped(tables.shared)}", "")
    if tables.particular:
        yield from ("**Particular to machines:**", "")
        yield from (f"- {_escaped(knob)}: {_escaped(values)}" for knob, values in tables.particular)
        yield ""


def _cross_section(group: WorkloadGroup, folder: Path | None) -> Iterator[str]:
    """What each machine gains or loses with another machine's config."""
    if not group.crosses:
        return
    yield from ("**With another machine's config:**", "")
    for cross in group.crosses:
        warning = "".join(f" Warning: {_escaped(note)}." for note in cross.notes)
        when = _linked(f"{cross.created:%Y-%m-%d}", cross.path, folder)
        yield f"- {_escaped(cross.machine)} {_escaped(cross.finding)} ({when}).{warning}"
    yield ""


def _linked(text: str, path: str, folder: Path | None) -> str:
    if folder is None:
        return text
    try:
        place = os.path.relpath(path, folder)
    except ValueError:  # on another drive of Windows
        return text
    return f"[{text}]({quote(Path(place).as_posix())})"


def _escaped(text: str) -> str:
    """Text on one line that Markdown and HTML show unchanged."""
    text = _plain(text)
    for pattern, replacement in _ESCAPES:
        text = pattern.sub(replacement, text)
    return text


def _code(text: str) -> str:
    """Text for a code span: without backticks, which would end it."""
    return _plain(text).replace("`", "'")


def _plain(text: str) -> str:
    """Text on one line, without control characters."""
    return " ".join(spelled(text).split())


# CSV.


def _fields(group: WorkloadGroup, row: Row) -> Iterator[Any]:
    """The fields of a row, in the order of `CSV_COLUMNS`."""
    yield from (row.path, group.name, group.target, group.fingerprint, row.machine, row.hostname, row.device)
    yield from (row.torch, row.created.isoformat(), row.status)
    yield from (row.before_samples_per_second, *(row.before_ci95 or (None, None)))
    yield from (row.after_samples_per_second, *(row.after_ci95 or (None, None)))
    speedup = row.speedup
    yield row.objective
    yield from (speedup.ratio, *speedup.ci95, speedup.pairs, speedup.confirmed) if speedup is not None else [None] * 5
    yield from (row.speedup_reason, row.memory_bytes, row.memory_of, row.samples_per_joule)
    yield from (row.dollars_per_hour, row.samples_per_dollar)
    yield settings_text({knob: after for knob, (_, after) in row.changed_knobs.items()})


def _knob_field(row: Row, knob: str) -> Any:
    """A number unchanged, other values as you would type them; None for an argument that the config does not give."""
    value = row.knobs.get(knob)
    if value is None and knob not in KNOB_NAMES:
        return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else knob_text(knob, value)


def _harmless(value: Any) -> Any:
    """Puts an apostrophe before text that a spreadsheet would take for a formula."""
    if not isinstance(value, str):
        return value
    text = _plain(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
