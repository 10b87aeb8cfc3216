"""The parts of a page: plain data, which only the templates turn into HTML.

The templates select a block by the name of its class, and escape every text, so that no block can inject markup. The
one exception is a picture's SVG, which `drawing` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Tone = Literal["plain", "note", "good", "warning"]


class Text(NamedTuple):
    """A paragraph; `lead` precedes its words, so that colour alone never carries the tone."""

    words: str
    tone: Tone = "plain"
    lead: str = ""


class Bullets(NamedTuple):
    """A list of sentences."""

    items: tuple[str, ...]
    heading: str = ""


class Picture(NamedTuple):
    """A chart as trusted SVG; `finding` describes it for screen readers, and `legend` explains how to read it."""

    svg: str
    finding: str
    legend: str = ""


class Table(NamedTuple):
    """Rows under headings; the first cell of a row names it, and cells keep their line breaks."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()  # indices of columns of figures, which are aligned to the right
    wide: bool = False  # may be wider than a phone, and scrolls by itself
    keys: tuple[str, ...] = ()  # filter key of each row; empty where nothing filters the rows


class Code(NamedTuple):
    """Lines for the reader to type."""

    text: str
    label: str


class Download(NamedTuple):
    """A file that is embedded in the page."""

    name: str
    uri: str
    words: str


class Folded(NamedTuple):
    """Blocks that the reader unfolds."""

    summary: str
    blocks: tuple[Block, ...]


class Pair(NamedTuple):
    """Two blocks, side by side if there is room."""

    first: Block
    second: Block


Block = Text | Bullets | Picture | Table | Code | Download | Folded | Pair


class Section(NamedTuple):
    """A heading and its blocks; `short` is its name in the list of sections, which links to `anchor`.

    A section is hidden when the reader deselects all of its filter `keys`.
    """

    anchor: str
    title: str
    short: str
    blocks: Sequence[Block]
    keys: tuple[str, ...] = ()


class Filter(NamedTuple):
    """A group of boxes: the reader hides what has a key by deselecting its label. Needs no script."""

    legend: str
    labels: dict[str, str]


class Headline(NamedTuple):
    """The answer, at the top of the page: `figure` is shown large, and `good` marks a proven gain."""

    figure: str
    words: str
    reason: str
    rates: str
    good: bool
