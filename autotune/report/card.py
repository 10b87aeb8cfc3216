"""The result card: one picture of a result, for a pull request or a message; SVG and PNG are the same drawing.

It brings its own ground, so that it reads alike on a light page and on a dark one.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from autotune import __version__
from autotune.report.charts import both_sides
from autotune.report.drawing import drawable, shortened
from autotune.results import summary
from autotune.results.result import Result
from autotune.units import format_rate
from autotune.wording import ratio_text, spelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARK = "autotune card"
"""In the file's metadata: by this a card is known, and may be replaced by a newer one."""
WIDTH, SIDE = 760.0, 28.0
"""In pixels, of the card and of the blank at its sides."""
_DOTS = {"svg": 72, "png": 144}
"""An inch: a PNG has two pixels for one, for screens that have as many."""
_SURFACE, _INK, _MUTED, _GRID = "#ffffff", "#1b1f24", "#57606a", "#d5dae0"
_BEFORE, _AFTER, _GOOD, _DOUBT = "#c98a4b", "#0b5cad", "#0f6b34", "#8a5a00"
_MOST_KNOBS, _LONGEST_NAME, _LONGEST_LINE = 10, 44, 96
"""Rows and characters for which there is room; the report has all of them."""
_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "card", "text.parse_math": False, "font.family": "sans-serif",
    "text.color": _INK,
}  # fmt: skip
_FIGURES, _WORTHS, _BARS_WIDTH = 200.0, 440.0, 330.0
"""Where columns begin, and how long the longest bar is."""


def card(result: Result, kind: Literal["svg", "png"]) -> bytes:
    """The card of a result, also of one that claims nothing.

    Args:
        result: Of a script or of a `build()`.
        kind: Of picture.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    rows = _Rows()
    for part in (_head, _verdict, _rates, _memory, _knobs, _foot):
        part(result, rows)
    height = rows.height
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks, the reader's may have
        mpl.rcdefaults()  # not the user's own style
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        figure.patch.set_visible(False)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(height, 0)
        box = FancyBboxPatch(
            (6, 6), WIDTH - 12, height - 12, boxstyle="round,pad=0,rounding_size=10", fc=_SURFACE, ec=_GRID, lw=1
        )
        axes.add_patch(box)
        rows.paint(axes)
        buffer = io.BytesIO()
        title = f"{spelled(result.workload.name)}: {summary.verdict(result).words}"
        by = {"Creator": MARK, "Date": None} if kind == "svg" else {"Software": MARK}
        figure.savefig(buffer, format=kind, dpi=_DOTS[kind], metadata={"Title": title, **by})
    return buffer.getvalue()


class _Rows:
    """What is painted, from the top; the height is known when all is there."""

    def __init__(self) -> None:
        self.height = SIDE
        self._marks: list[Callable[[Axes], Any]] = []

    def space(self, height: float) -> None:
        """Leaves a blank."""
        self.height += height

    def text(self, text: str, at: float = SIDE, *, size: float = 11.5, colour: str = _INK, **style: Any) -> None:
        """Writes on the current line, whose middle is told by the height so far."""
        line = self.height
        style = {"va": "center_baseline", "ha": "left", **style}
        self._marks.append(lambda axes: axes.text(at, line, spelled(text), fontsize=size, color=colour, **style))

    def mark(self, mark: Callable[[Axes, float], Any]) -> None:
        """Paints on the current line."""
        line = self.height
        self._marks.append(lambda axes: mark(axes, line))

    def rule(self) -> None:
        """A line across."""
        self.mark(lambda axes, line: axes.plot([SIDE, WIDTH - SIDE], [line, line], color=_GRID, lw=1))

    def paint(self, axes: Axes) -> None:
        """Paints all."""
        for mark in self._marks:
            mark(axes)


def _head(result: Result, rows: _Rows) -> None:
    rows.space(12)
    rows.text(shortened(result.workload.name, _LONGEST_NAME), size=18, weight="bold")
    rows.text(f"{result.created:%Y-%m-%d}", WIDTH - SIDE, size=11, colour=_MUTED, ha="right")
    rows.space(25)
    rows.text(shortened(result.machine, _LONGEST_LINE), colour=_MUTED)
    rows.space(20)
    rows.rule()


def _verdict(result: Result, rows: _Rows) -> None:
    """The speed-up and its interval, or why there is none."""
    found, speedup = summary.verdict(result), result.speedup
    rows.space(36)
    if found.confirmed and speedup is not None:
        rows.text(ratio_text(speedup.ratio), size=38, colour=_GOOD, weight="bold")
        rows.space(-12)
        rows.text(found.words, _FIGURES, size=13.5, weight="bold")
        rows.space(23)
        rows.text(summary.spread_text(speedup), _FIGURES, colour=_MUTED)
        rows.space(25)
    else:
        rows.text(found.words, size=20, colour=_DOUBT, weight="bold")
        rows.space(6)
        for line in _wrapped(found.reason):
            rows.space(21)
            rows.text(line, colour=_MUTED)
        rows.space(8)
    if (why := summary.unfinished(result)) is not None:
        rows.space(16)
        rows.text(f"partial: {why}", colour=_DOUBT)


def _rates(result: Result, rows: _Rows) -> None:
    """Both rates as bars from zero on, with their intervals."""
    bars = [bar for bar in both_sides(result) if drawable(bar.rate)]
    most = max((max(bar.rate, bar.interval.high) for bar in bars), default=1.0)
    for bar in bars if result.changed_knobs else bars[:1]:
        rows.space(28)
        colour = _BEFORE if bar.label == "before" else _AFTER
        rows.text(bar.label if result.changed_knobs else "as it is", colour=_MUTED)
        scale = _BARS_WIDTH / most

        def paint(axes: Axes, line: float, bar: Any = bar, colour: str = colour, scale: float = scale) -> None:
            axes.barh(line, bar.rate * scale, 14, left=_FIGURES, color=colour)
            if drawable(bar.interval.low) and drawable(bar.interval.high):
                ends = [_FIGURES + end * scale for end in bar.interval]
                axes.plot(ends, [line, line], color=_INK, lw=1.4)
                axes.plot(ends, [line, line], "|", color=_INK, ms=8, mew=1.4)

        rows.mark(paint)
        rows.text(format_rate(bar.rate), _FIGURES + max(bar.rate, bar.interval.high) * scale + 12, weight="bold")
    if not result.objective.is_rate:
        scores = [result.score_of(side) for side in (result.baseline, result.best)]
        if None not in scores:
            rows.space(26)
            rows.text(result.objective.name.replace("_", " "), colour=_MUTED)
            rows.text(" → ".join(result.objective.format(one) for one in scores if one is not None), _FIGURES)


def _memory(result: Result, rows: _Rows) -> None:
    """The peak of the device's memory, and the host's."""
    for figure in summary.figures(result):
        if figure.label.endswith("memory"):
            rows.space(27)
            rows.text(f"{figure.label}, peak", colour=_MUTED)
            told = f"{figure.before} → {figure.after}" if result.changed_knobs else figure.before
            rows.text(told, _FIGURES)


def _knobs(result: Result, rows: _Rows) -> None:
    changed = summary.changes(result)
    if not changed:
        return
    rows.space(22)
    rows.rule()
    rows.space(22)
    rows.text("changed", colour=_MUTED)
    if any(change.worth for change in changed):
        rows.text("worth, reverted alone", _WORTHS, colour=_MUTED)
    for change in changed[:_MOST_KNOBS]:
        rows.space(23)
        rows.text(shortened(change.knob, 24), weight="bold")
        rows.text(shortened(f"{change.before} → {change.after}", 34), _FIGURES)
        rows.text(change.worth, _WORTHS, colour=_MUTED)
    if len(changed) > _MOST_KNOBS:
        rows.space(23)
        rows.text(f"and {len(changed) - _MOST_KNOBS} more", colour=_MUTED)


def _foot(result: Result, rows: _Rows) -> None:
    """With what it was measured."""
    software = result.software
    versions = [
        f"autotune {software.autotune or __version__}",
        *([f"torch {software.torch}"] if software.torch else []),
    ]
    numerics = [f"numerics: {result.numerics.outcome}"] if result.numerics is not None else []
    rows.space(22)
    rows.rule()
    rows.space(20)
    rows.text(" · ".join([*versions, *numerics]), size=10.5, colour=_MUTED)
    rows.space(SIDE)


def _wrapped(text: str) -> list[str]:
    """A sentence in lines for which there is room; the fourth ends it."""
    return textwrap.wrap(spelled(text), _LONGEST_LINE, max_lines=4, placeholder=" …")
