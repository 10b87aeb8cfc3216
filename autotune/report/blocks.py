"""What a page is made of: plain data, which the templates alone turn into HTML.

Each block has a `kind`, by which the templates know it. Every text is shown as it stands: escaping is the templates'
part, so that no block can smuggle in markup. The one exception is a picture's SVG, which `drawing` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Tone = Literal["plain", "note", "good", "warning"]


@dataclass(frozen=True)
class Text:
    """A paragraph; `lead` is said before its words, so that no tone is told by colour alone."""

    words: str
    tone: Tone = "plain"
    lead: str = ""
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Bullets:
    """Sentences of one kind."""

    items: tuple[str, ...]
    heading: str = ""
    kind: ClassVar[str] = "bullets"


@dataclass(frozen=True)
class Picture:
    """A chart as trusted SVG; `finding` tells whoever cannot see it what it shows, `legend` how to read it."""

    svg: str
    finding: str
    legend: str = ""
    kind: ClassVar[str] = "picture"


@dataclass(frozen=True)
class Table:
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
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Code:
    """Lines to be typed."""

    text: str
    label: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Download:
    """A file that the page carries in itself."""

    name: str
    uri: str
    words: str
    kind: ClassVar[str] = "download"


@dataclass(frozen=True)
class Folded:
    """What is shown on request."""

    summary: str
    blocks: tuple[Block, ...]
    kind: ClassVar[str] = "folded"


@dataclass(frozen=True)
class Pair:
    """Two blocks side by side, where there is room."""

    left: Block
    right: Block
    kind: ClassVar[str] = "pair"


Block = Text | Bullets | Picture | Table | Code | Download | Folded | Pair


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; `short` names it in the list of sections, which links to `anchor`."""

    anchor: str
    title: str
    short: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Headline:
    """The answer, before all else.

    Attributes:
        figure: A few characters, shown large; empty where there is none.
        words: What it is.
        reason: How sure it is, or why there is none.
        rates: Before and after; empty where they are not known.
        good: Whether it is a proven gain.
    """

    figure: str
    words: str
    reason: str
    rates: str
    good: bool
