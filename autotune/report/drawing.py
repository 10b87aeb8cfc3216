"""Pictures as inline SVG: drawn by matplotlib, coloured by the page's variables, so that dark mode reaches them.

Nothing here keeps state: no pyplot, and matplotlib's settings are restored. Fonts are the page's own. The same data
give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autotune.wording import spelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 360.0
"""Units of every picture, so that a unit is about a pixel on a phone and letters are of one size in all of them."""
MARGIN = 4.0
FONT_SIZE, SMALL = 13.5, 12.0
ROW = 44.0
"""Height of a row that has its label above its mark."""
AXIS = 28.0
"""Height of the numbers below an axis."""
LONGEST_ROW = 45
"""Characters above a row's mark, its figure included; the table beside a picture has the whole label."""

# Stand-ins, each replaced by a variable of the style sheet; black is none of them, since SVG does not spell it out.
_VARIABLES = ("ink", "muted", "grid", "before", "after", "part", "failed", "target", "surface")
INK, MUTED, GRID, BEFORE, AFTER, PART, FAILED, TARGET, SURFACE = (f"#0a0b{i:02x}" for i in range(1, 10))

_STYLE: Any = {  # not dict[str, Any]: some versions of matplotlib name every key
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.prop_cycle": f"cycler('color', ['{INK}'])",
    "font.size": FONT_SIZE,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": SMALL,
    "ytick.labelcolor": MUTED,
    "ytick.labelsize": SMALL,
    "grid.color": GRID,
    "errorbar.capsize": 4,
}


def draw(name: str, height: float, paint: Callable[[Axes], None], *, left: float = MARGIN, bottom: float = AXIS) -> str:
    """One picture as an ``<svg>`` element without a description, which the template adds.

    Args:
        name: Unique on the page: the ids inside are made from it.
        height: In units, as are the room for numbers at the left and at the bottom.
        paint: Draws on the axes.
        left: Room for the numbers beside the axes.
        bottom: Room for those below.
    """
    return draw_panels(name, [height - bottom - MARGIN], lambda panels: paint(*panels), left=left, bottom=bottom)


def draw_panels(
    name: str,
    heights: Sequence[float],
    paint: Callable[[Sequence[Axes]], None],
    *,
    left: float = MARGIN,
    bottom: float = AXIS,
    between: float = 0.0,
) -> str:
    """The same with several axes, one below the other.

    Args:
        name: As for `draw`, like all that is not named here.
        heights: Of each, from the top.
        paint: Draws on them.
        left: Room for the numbers beside them.
        bottom: Room for those below the last.
        between: Room between two of them.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    height = MARGIN + sum(heights) + (len(heights) - 1) * between + bottom
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph that matplotlib's font lacks, the page's font may have
        mpl.rcdefaults()  # not the user's own style
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["svg.hashsalt"] = name
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        figure.patch.set_visible(False)
        panels, top = [], height - MARGIN
        for own in heights:
            top -= own
            room = (left / WIDTH, top / height, (WIDTH - left - 2 * MARGIN) / WIDTH, own / height)
            panels.append(figure.add_axes(room))
            panels[-1].patch.set_visible(False)
            top -= between
        paint(panels)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return inline(buffer.getvalue(), WIDTH, height)


def inline(svg: str, width: float, height: float) -> str:
    """A stand-alone SVG file as an element of a page that has others of its kind."""
    inner = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    inner = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", inner, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', inner))
    inner = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", inner)
    inner = re.sub(r"(<text style=\"[^\">]*?)font-family: [^;\">]+; ", r"\1", inner)  # the page has its own
    inner = re.sub(r"#0a0b0([1-9])", lambda found: f"var(--{_VARIABLES[int(found[1]) - 1]})", inner)
    inner = re.sub(r"\n\s*", "\n", inner).strip()
    return f'<svg viewBox="0 0 {width:g} {height:g}" focusable="false">\n{inner}\n</svg>'


def draw_rows(name: str, count: int, paint: Callable[[Axes], None]) -> str:
    """A picture that is a list: row `n`, from the top, lies between `n` and `n + 1`, and has no numbers at its side."""

    def paint_rows(axes: Axes) -> None:
        axes.set_ylim(count, 0)
        axes.yaxis.set_visible(False)
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="x")
        paint(axes)

    return draw(name, MARGIN + count * ROW + AXIS, paint_rows)


def row_label(axes: Axes, row: int, label: str, figure: str, *, strong: bool = False) -> None:
    """Names a row at its left, and gives its figure at its right, both above the mark."""
    label = shortened(" ".join(spelled(label).split()), LONGEST_ROW - len(figure))
    box = {"facecolor": SURFACE, "edgecolor": "none", "pad": 1.5}  # no line of the grid runs through letters
    weight, place = "bold" if strong else "normal", axes.get_yaxis_transform()
    axes.text(0, row + 0.4, label, ha="left", transform=place, weight=weight, bbox=box)
    axes.text(1, row + 0.4, figure, ha="right", transform=place, weight=weight, bbox=box)


def shortened(label: str, most: int) -> str:
    """A label of no more than so many characters."""
    return label if len(label) <= most else f"{label[: most - 1].rstrip()}…"


def drawable(value: float | None) -> bool:
    """Whether a figure can be drawn: a broken file may hold anything."""
    return value is not None and 1e-12 < value < 1e15


def compact(value: float) -> str:
    """A number beside an axis: ``850``, ``1.2k``, ``3M``."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def steps(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from low to high, both within or just beyond."""
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(count).tick_values(low, high)]


def log_steps(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2, 5, 10, thinned out if they are many; even steps if it is narrow."""
    if high < 4 * low:
        return [tick for tick in steps(low, high) if low <= tick <= high and tick > 0]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [digit * 10.0**decade for decade in decades for digit in digits if low <= digit * 10.0**decade <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]
