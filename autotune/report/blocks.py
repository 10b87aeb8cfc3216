"""What a page is made of: plain data, which the templates alone turn into HTML.

The templates know a block by the name of its class, and escape every text, so that no block can smuggle in markup.
The one exception is a picture's SVG, which `drawing` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Tone = Literal["plain", "note", "good", "warning"]


class Text(NamedTuple):
    """A paragraph; `lead` is said before its words, so that no tone is told by colour alone."""

    words: str
    tone: Tone = "plain"
    lead: str = ""


class Bullets(NamedTuple):
    """Sentences of one kind."""

    items: tuple[str, ...]
    heading: str = ""


class Picture(NamedTuple):
    """A chart as trusted SVG; `finding` tells whoever cannot see it what it shows, `legend` how to read it."""

    svg: str
    finding: str
    legend: str = ""


class Table(NamedTuple):
    """Rows under headings; the first cell of a row names it, and a line break in a cell is kept.

    Attributes:
        numeric: Columns of figures, which are aligned to the right.
        wide: Whether it may be wider than a phone: it is then scrolled on its own.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    wide: bool = False


class Code(NamedTuple):
    """Lines to be typed."""

    text: str
    label: str


class Download(NamedTuple):
    """A file that the page carries in itself."""

    name: str
    uri: str
    words: str


class Folded(NamedTuple):
    """What is shown on request."""

    summary: str
    blocks: tuple[Block, ...]


class Pair(NamedTuple):
    """Two blocks side by side, where there is room."""

    left: Block
    right: Block


Block = Text | Bullets | Picture | Table | Code | Download | Folded | Pair


class Section(NamedTuple):
    """A heading and what stands below it; `short` names it in the list of sections, which links to `anchor`."""

    anchor: str
    title: str
    short: str
    blocks: Sequence[Block]


class Headline(NamedTuple):
    """The answer, before all else: `figure` is shown large, and `good` says whether it is a proven gain."""

    figure: str
    words: str
    reason: str
    rates: str
    good: bool
