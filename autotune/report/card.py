"""The result card: a result as one picture for a pull request or a message, drawn by matplotlib as SVG or PNG.

It sets its own background, so that it looks the same on light and dark pages.
"""

from __future__ import annotations

import io
import textwrap
from typing import Any, Literal

from autotune.report.charts import both_sides
from autotune.report.drawing import drawable, load_matplotlib, shortened, styled
from autotune.results import summary
from autotune.results.result import Result
from autotune.units import format_rate
from autotune.wording import ratio_text, spelled

MARK = "autotune card"
"""Mark in the file's metadata that identifies a card, so that a newer card may replace it."""
WIDTH, LINE, COLUMNS = 760.0, 23.0, (30.0, 200.0, 440.0)
"""Pixels: the card's width, a line's height, and where each column begins."""
MOST_KNOBS, LONGEST_LINE = 10, 96
"""The rows, and the characters of a line, that fit on a card; the report has all of them."""
DOTS = {"svg": 72, "png": 144}
"""Dots per inch: a PNG has twice the resolution, for high-resolution screens."""
INK, MUTED, GRID, GOOD, DOUBT = "#1b1f24", "#57606a", "#d5dae0", "#0f6b34", "#8a5a00"
COLOURS = {"before": "#c98a4b", "after": "#0b5cad"}
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "card", "text.parse_math": False, "text.color": INK, "font.size": 11.5,
}  # fmt: skip


def card(result: Result, kind: Literal["svg", "png"]) -> bytes:
    """The picture of a result, also of one without a confirmed gain."""
    load_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    verdict, speedup = summary.verdict(result), result.speedup
    headline, reason, colour = verdict.words, verdict.reason, DOUBT
    if verdict.confirmed and speedup is not None:
        headline, colour = f"{ratio_text(speedup.ratio)} {headline}", GOOD
        reason = f"{summary.spread_text(speedup)}{summary.beside_others(result)}"
    reasons = textwrap.wrap(reason, LONGEST_LINE, max_lines=4, placeholder=" …")
    if (why := summary.unfinished(result)) is not None:
        reasons.append(f"partial: {why}")
    bars = [bar for bar in both_sides(result) if drawable(bar.rate)][: 2 if result.changed_knobs else 1]
    figures, changes = _figures(result), _changes(result)
    height = 200 + LINE * (len(reasons) + len(bars) + len(figures) + len(changes))
    with styled(STYLE):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        figure.patch.set_visible(False)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
        axes.set_axis_off()
        box: Any = {"boxstyle": "round,pad=0,rounding_size=10", "fc": "#ffffff", "ec": GRID}
        axes.add_patch(FancyBboxPatch((6, 6), WIDTH - 12, height - 12, **box))

        def write(y: float, *cells: str, **style: Any) -> float:
            """Writes a line with a cell per column, and returns the position of the next line."""
            for x, cell in zip(COLUMNS, cells, strict=False):
                axes.text(x, y, spelled(cell), va="center_baseline", **style)
            return y + LINE

        y = write(42, shortened(result.workload.name, 44), size=18, weight="bold") + 2
        y = write(y, shortened(f"{result.machine}, {result.created:%Y-%m-%d}", LONGEST_LINE), color=MUTED) + 12
        y = write(y, headline, size=24, weight="bold", color=colour) + 6
        for line in reasons:
            y = write(y, line, color=MUTED)
        y += 6
        most = max((max([bar.rate, *(bar.interval or ())]) for bar in bars), default=1.0)
        for bar in bars:
            scale = 330 / most
            axes.barh(y, bar.rate * scale, 13, left=COLUMNS[1], color=COLOURS[bar.label])
            ends = [COLUMNS[1] + end * scale for end in bar.interval or ()]
            axes.plot(ends, [y] * len(ends), "-|", color=INK, ms=7, mew=1.4)
            end = max([COLUMNS[1] + bar.rate * scale, *ends])
            axes.text(end + 12, y, format_rate(bar.rate), va="center_baseline", weight="bold")
            y = write(y, bar.label if result.changed_knobs else "as it is", color=MUTED)
        for figures_row in figures:
            y = write(y, *figures_row, color=MUTED)
        y += 10
        for number, row in enumerate(changes):
            y = write(y, *row, color=INK if number else MUTED)
        axes.plot([COLUMNS[0], WIDTH - COLUMNS[0]], [y, y], color=GRID, lw=1)
        write(y + 20, _versions(result), color=MUTED, size=10.5)
        buffer = io.BytesIO()
        title = f"{spelled(result.workload.name)}: {verdict.words}"
        by = (
            {"Creator": MARK, "Date": None} if kind == "svg" else {"Software": MARK}
        )  # undated, so that the bytes are reproducible
        figure.savefig(buffer, format=kind, dpi=DOTS[kind], metadata={"Title": title, **by})
    return buffer.getvalue()


def _figures(result: Result) -> list[tuple[str, str]]:
    """The objective's score unless it is the rate, and the memory peaks."""
    named = {"host memory", "device memory", result.objective.name.replace("_", " ")}
    return [
        (figure.label, f"{figure.before} → {figure.after}" if result.changed_knobs else figure.before)
        for figure in summary.figures(result)
        if figure.label in named
    ]


def _changes(result: Result) -> list[tuple[str, str, str]]:
    """Each changed knob and its worth, below a heading; empty if no knob was changed."""
    rows = [
        (shortened(knob, 24), shortened(f"{before} → {after}", 34), worth)
        for knob, before, after, worth in summary.changes(result)
    ]
    more = [(f"and {len(rows) - MOST_KNOBS} more", "", "")] if len(rows) > MOST_KNOBS else []
    worth = "worth, reverted alone" if any(row[2] for row in rows) else ""
    return [("changed", "before → after", worth), *rows[:MOST_KNOBS], *more] if rows else []


def _versions(result: Result) -> str:
    """The versions of the software, and the outcome of the numerics check."""
    software, numerics = result.software, result.numerics
    versions = {"autotune ": software.autotune, "torch ": software.torch}
    facts = versions | {"numerics: ": numerics.outcome if numerics is not None else None}
    return " · ".join(f"{name}{value}" for name, value in facts.items() if value)
