"""Gauges of one line, as wide as there is room: the budget by stage, and a ratio with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.text import Text

from autotune.measuring import Interval

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

COLOURS = ("cyan", "magenta", "blue", "yellow", "green", "bright_cyan", "bright_magenta", "bright_blue")
"""Of stages, in the order in which they come; red is kept for what fails."""
WIDEST = 60
NARROWEST = 5
"""With fewer cells a gauge says nothing, and is left out."""
ENDS = 2.0
"""A ratio's gauge reaches from its inverse to this, on a logarithmic scale."""


def colour_of(stage: str, stages: Mapping[str, float]) -> str:
    """The colour of a stage among those so far."""
    return COLOURS[[*stages].index(stage) % len(COLOURS)]


@dataclass(frozen=True)
class BudgetBar:
    """The time that each stage has taken, and what is left of the whole.

    Attributes:
        stages: Seconds of each, in the order in which they came.
        left: Seconds.
    """

    stages: Mapping[str, float]
    left: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draws it."""
        cells, filled, rest = _cells(options), *(("=", "-") if options.ascii_only else ("━", "─"))
        whole = sum(self.stages.values()) + self.left
        ends = [round(cells * end / whole) if whole > 0 else 0 for end in accumulate(self.stages.values())]
        bar = Text(no_wrap=True)
        for stage, start, end in zip(self.stages, [0, *ends], ends, strict=False):
            bar.append(filled * (end - start), colour_of(stage, self.stages))
        yield bar.append(rest * (cells - len(bar)), "dim")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Any width will do."""
        return Measurement(min(NARROWEST, options.max_width), min(WIDEST, options.max_width))


@dataclass(frozen=True)
class RatioGauge:
    """A ratio and its interval on a line from a half to twice, with 1 in its middle."""

    ratio: float
    interval: Interval

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draws it."""
        cells = _cells(options)
        if cells < NARROWEST:
            return
        cells -= 1 - cells % 2  # an odd number has a middle
        rest, one, spread, mark = "-|=o" if options.ascii_only else "─┿━●"
        drawn = [rest] * cells
        low, high = (_place(end, cells) for end in self.interval)
        drawn[low : high + 1] = spread * (high + 1 - low)
        drawn[cells // 2] = one
        drawn[_place(self.ratio, cells)] = mark
        line = Text("".join(drawn), no_wrap=True)
        line.stylize("dim", 0, low)
        line.stylize(ratio_style(self.interval), low, high + 1)
        line.stylize("dim", high + 1)
        yield line

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Any width will do."""
        return Measurement(min(NARROWEST, options.max_width), min(WIDEST, options.max_width))


def ratio_style(interval: Interval) -> str:
    """Green where a ratio is above 1 beyond doubt, red where it is below."""
    return "green" if interval.low > 1 else "red" if interval.high < 1 else "yellow"


def _cells(options: ConsoleOptions) -> int:
    return min(options.max_width, WIDEST)


def _place(ratio: float, cells: int) -> int:
    """The cell of a ratio; what lies beyond the ends is drawn at them."""
    share = math.log(min(max(ratio, 1 / ENDS), ENDS)) / math.log(ENDS)
    return round((cells - 1) * (share + 1) / 2)
