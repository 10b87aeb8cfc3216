"""The report: one self-contained HTML file beside a result, and one for a comparison; no script, nothing loaded.

`blocks` holds the parts of a page as plain data, which `page` turns into HTML; a file for each section makes its parts.
May import `results` and what lies below, and no torch. Start here, with `render_report`.
"""

from __future__ import annotations

from pathlib import Path

from autotune.errors import ResultFileError
from autotune.files import write_whole
from autotune.hardware import hardware_rows
from autotune.report.answer import ablation, answers, headline, numerics, rates, usage
from autotune.report.blocks import Section, Table, Text
from autotune.report.history import history
from autotune.report.limits import ceilings, diagnosis, memory, telemetry
from autotune.report.page import Page, RawData, render
from autotune.report.pairs import confirmation
from autotune.results.files import to_json
from autotune.results.result import Result
from autotune.results.summary import is_live, unfinished
from autotune.units import format_seconds

__all__ = ["render_first_screen", "render_report", "write_report"]


def render_report(result: Result, source: Path | None = None) -> str:
    """A result as one HTML page.

    Args:
        result: A complete or partial result.
        source: Its file, as the page names it; None for a result without a file.
    """
    raw = RawData(
        name=source.name if source is not None else "result.json",
        text=to_json(result),
        place=str(source) if source is not None else "the result file",
    )
    return render(_page(result, source, _sections(result, source), raw))


def render_first_screen(result: Result, source: Path | None = None) -> str:
    """The first screen of the report as its own page: the answers, and before and after."""
    return render(_page(result, source, [_before_and_after(result)], None))


def write_report(result: Result, path: Path) -> Path:
    """Writes the page atomically beside a result's file, and returns its path.

    Raises:
        ResultFileError: The page cannot be written.
    """
    place = path.with_suffix(".html")
    if place == path:
        raise ResultFileError(
            f"the report of {path} would overwrite it; give the result file another ending, such as .json"
        )
    try:
        write_whole(place, render_report(result, path))
    except OSError as error:
        raise ResultFileError(
            f"the report could not be written to {place}: {error.strerror or error}; make its folder writable"
        ) from error
    return place


def _page(result: Result, source: Path | None, sections: list[Section], raw: RawData | None) -> Page:
    workload, why = result.workload, unfinished(result)
    return Page(
        title=f"{workload.name} on {result.machine} – autotune",
        heading=workload.name,
        about=(f"{workload.target} · {result.machine} · {result.created:%Y-%m-%d}",),
        warning=f"PARTIAL: {why}" if why is not None else None,
        headline=headline(result),
        answers=answers(result, source),
        sections=sections,
        raw=raw,
    )


def _before_and_after(result: Result) -> Section:
    return Section("rates", "Before and after", "Before and after", rates(result))


def _setting(result: Result) -> Text:
    """Date, device, torch version, and the budget of the tuning; a training has none."""
    torch = f", torch {result.software.torch}" if result.software.torch else ""
    budget = "" if is_live(result) else f", budget {format_seconds(result.constraints.budget_seconds)}"
    when = f"{result.created:%Y-%m-%d %H:%M %Z}".strip()
    return Text(f"{when}, device {result.constraints.device}{torch}{budget}, stopped by: {result.stopped_by}")


def _sections(result: Result, source: Path | None) -> list[Section]:
    """The sections in the order of a reader's questions: how much, why, and what now."""
    rows = tuple((label, "\n".join(lines)) for label, lines in hardware_rows(result.hardware))
    machine = Table(result.hardware.hostname, ("", ""), rows)
    pairs = confirmation(result)
    return [
        _before_and_after(result),
        *([Section("pairs", "The proof, pair by pair", "Proof", pairs)] if pairs else []),
        Section("ablation", "What each change was worth", "Worth", ablation(result)),
        Section("ceilings", "Ceilings, and what was reached", "Ceilings", ceilings(result)),
        Section("memory", "Memory by batch size", "Memory", memory(result)),
        Section("history", "Every burst of the search", "Bursts", history(result)),
        Section("telemetry", "Telemetry, before and after", "Telemetry", telemetry(result)),
        Section("diagnosis", "Diagnosis and advice", "Diagnosis", diagnosis(result)),
        Section("numerics", "Does it still train the same thing?", "Numerics", numerics(result)),
        Section("machine", "The machine", "Machine", (_setting(result), machine)),
        Section("usage", "How to keep it and check it", "Use", usage(result, source)),
    ]
