"""Gauges of one line: the budget by stage, and a ratio with its interval."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from autotune.measuring.statistics import Interval
from autotune.terminal.gauges import COLOURS, BudgetBar, RatioGauge, colour_of


def line_of(gauge: Any, width: int = 40, encoding: str = "utf-8") -> Text:
    """What a gauge draws on a terminal of so many columns."""
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), width=width)
    (line,) = gauge.__rich_console__(console, console.options)
    assert isinstance(line, Text)
    return line


def colours_of(line: Text) -> dict[str, int]:
    """How many cells have which style."""
    return {str(span.style): span.end - span.start for span in line.spans if span.end > span.start}


def test_stages_take_their_share_of_the_bar() -> None:
    """What is left is dim."""
    line = line_of(BudgetBar({"importing": 10.0, "search": 20.0}, 10.0))
    assert line.plain == "━" * 30 + "─" * 10
    assert colours_of(line) == {COLOURS[0]: 10, COLOURS[1]: 20, "dim": 10}


def test_stages_that_are_shorter_than_a_cell_add_up() -> None:
    """Rounding each by itself would lose them, or fill too much."""
    line = line_of(BudgetBar({str(number): 1.0 for number in range(30)}, 30.0), width=10)
    assert line.plain == "━" * 5 + "─" * 5


def test_a_budget_that_is_used_up_fills_the_bar() -> None:
    """Also where nothing was ever there."""
    assert line_of(BudgetBar({"search": 20.0}, 0.0)).plain == "━" * 40
    assert line_of(BudgetBar({"search": 0.0}, 0.0)).plain == "─" * 40


def test_many_stages_share_colours() -> None:
    """There are more stages than colours that can be told apart."""
    stages = {str(number): 1.0 for number in range(len(COLOURS) + 1)}
    assert colour_of("0", stages) == colour_of(str(len(COLOURS)), stages)


@pytest.mark.parametrize(
    ("ratio", "ends", "drawn"),
    [
        (1.0, (0.8, 1.25), "──────━━━●━━━──────"),
        (1.5, (1.25, 1.8), "─────────┿──━━●━━━─"),
        (0.5, (0.1, 0.6), "●━━──────┿─────────"),
        (9.0, (7.0, 11.0), "─────────┿────────●"),
    ],
)
def test_a_ratio_lies_on_a_line_from_half_to_twice(ratio: float, ends: tuple[float, float], drawn: str) -> None:
    """With 1 in the middle; what lies beyond is drawn at the end."""
    assert line_of(RatioGauge(ratio, Interval(*ends)), width=19).plain == drawn


@pytest.mark.parametrize(("ends", "colour"), [((1.01, 1.2), "green"), ((0.9, 0.99), "red"), ((0.9, 1.1), "yellow")])
def test_the_colour_says_what_is_beyond_doubt(ends: tuple[float, float], colour: str) -> None:
    """So does the line, which reaches across 1 or does not."""
    assert colour in colours_of(line_of(RatioGauge(1.0, Interval(*ends))))


def test_an_even_number_of_columns_has_a_middle_too() -> None:
    """One column is left free."""
    assert len(line_of(RatioGauge(1.0, Interval(0.9, 1.1)), width=20)) == 19


def test_without_room_a_ratio_has_no_line() -> None:
    """Its figure stands beside it."""
    console = Console(file=io.StringIO(), width=4)
    assert list(RatioGauge(1.0, Interval(0.9, 1.1)).__rich_console__(console, console.options)) == []


def test_a_terminal_without_lines_gets_letters() -> None:
    """As in some build servers."""
    assert line_of(BudgetBar({"search": 5.0}, 5.0), width=10, encoding="ascii").plain == "=====-----"
    assert line_of(RatioGauge(1.5, Interval(1.25, 1.8)), width=19, encoding="ascii").plain == "---------|--==o===-"
