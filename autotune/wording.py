"""Formats figures and names for people, so that they look the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from autotune.secrets import masked_text

if TYPE_CHECKING:
    from rich.text import Text

T = TypeVar("T")


def spelled(value: str) -> str:
    """A text with its secrets hidden and its control characters spelled out: names must not control a terminal.

    Every text that people read passes through here: in a terminal, on a page, in Markdown, in a picture.
    """
    text = masked_text(value)
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def as_text(value: str, style: str = "") -> Text:
    """A spelled text as a `Text`, which rich does not read as markup: "[bold]" stays "[bold]"."""
    from rich.text import Text  # here: not every command shows one

    return Text(spelled(value), style=style)


def labelled(label: str, value: str, style: str = "yellow", value_style: str = "") -> Text:
    """A line such as ``warning: …``; `style` colours the label."""
    from rich.text import Text

    return Text.assemble(as_text(f"{label}: ", style), as_text(value, value_style))


def percent(fraction: float, digits: int = 0) -> str:
    """A fraction as a percentage: ``34 %``."""
    return f"{fraction * 100:.{digits}f} %"


def or_dash(value: T | None, words: Callable[[T], str]) -> str:
    """A figure in words, or a dash for None."""
    return "–" if value is None else words(value)


def ratio_text(ratio: float) -> str:
    """A ratio of rates with three digits, or four near 1, where they matter: ``1.42×``, ``1.008×``."""
    if 0.9 < ratio < 1.1:
        return f"{ratio:.3f}×"
    return f"{ratio:,.0f}×" if ratio >= 99.95 else f"{ratio:#.3g}×"
