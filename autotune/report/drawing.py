"""Pictures as inline SVG: drawn by matplotlib, coloured by the page's variables, so that dark mode applies to them.

Nothing here keeps state: pyplot is not used, and matplotlib's settings are restored. Fonts are the page's own. The same
data give the same bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.wording import spelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 360.0
"""Width of every picture in units: a unit is about a pixel on a phone, and letters have the same size in all."""
MARGIN = 4.0
FONT_SIZE, SMALL = 13.5, 12.0
ROW = 44.0
"""Height of a row with the label above its mark."""
AXIS = 28.0
"""Height of the numbers below an axis."""
LONGEST_ROW = 45
"""Most characters above a row's mark, including its figure; the table beside the picture has the whole label."""

# Placeholder colours, which variables of the style sheet replace. Black cannot be one: matplotlib's SVG omits it.
_VARIABLES = ("ink", "muted", "grid", "before", "after", "part", "failed", "target", "surface")
INK, MUTED, GRID, BEFORE, AFTER, PART, FAILED, TARGET, SURFACE = (f"#0a0b{i:02x}" for i in range(1, 10))

_STYLE: Any = {  # not dict[str, Any]: some versions of matplotlib type every key
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold a dollar sign
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

_DRAWING = threading.RLock()
"""A thread that imports matplotlib or changes its settings holds this lock: all threads share the settings."""


@contextlib.contextmanager
def styled(settings: Mapping[str, Any]) -> Iterator[None]:
    """Draws with these settings of matplotlib instead of the user's own, in one thread at a time."""
    mpl = load_matplotlib()
    with _DRAWING, mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the viewer's font may have glyphs that matplotlib's lacks
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield


def load_matplotlib() -> Any:
    """Imports matplotlib without writing to your home. It reads your settings and your list of fonts.

    Afterwards it uses your folders, as if you had imported it.
    """
    with _DRAWING:
        if "matplotlib.font_manager" not in sys.modules:
            with contextlib.suppress(OSError):  # without a temporary folder, it uses your folders from the start
                _load_aside()
        importlib.import_module("matplotlib.font_manager")
    return sys.modules["matplotlib"]


def _load_aside() -> None:
    """Imports matplotlib with a temporary folder in the place of yours.

    Wrong lines in your files are not reported: the messages would name copies that are gone, and no picture uses them.
    """
    own = {"get_configdir": _own_folder("config"), "get_cachedir": _own_folder("cache")}
    named, log = os.environ.get("MPLCONFIGDIR"), logging.getLogger("matplotlib")
    level = log.level
    with tempfile.TemporaryDirectory(prefix="autotune-", ignore_cleanup_errors=True) as folder:
        for place in own.values():
            for file in [*place.glob("matplotlibrc"), *place.glob("fontlist-*.json")]:
                with contextlib.suppress(OSError):
                    shutil.copy(file, folder)
        os.environ["MPLCONFIGDIR"] = folder
        log.setLevel(logging.ERROR)
        try:
            importlib.import_module("matplotlib.font_manager")
            mpl = sys.modules["matplotlib"]
            makers = {name: getattr(mpl, name) for name in own}
            for name, place in own.items():
                setattr(mpl, name, lambda place=str(place): place)
            for module in ("style", "backends.backend_agg", "backends.backend_svg"):  # they keep the answers
                importlib.import_module(f"matplotlib.{module}")
            for name, maker in makers.items():
                setattr(mpl, name, getattr(maker, "__wrapped__", maker))  # without its memory of the temporary folder
        finally:
            log.setLevel(level)
            os.environ.pop("MPLCONFIGDIR", None)
            if named is not None:
                os.environ["MPLCONFIGDIR"] = named


def _own_folder(kind: str) -> Path:
    """Where matplotlib keeps a user's ``config`` or ``cache``."""
    home, local = Path(os.path.expanduser("~")), os.environ.get("LOCALAPPDATA")
    if named := os.environ.get("MPLCONFIGDIR"):
        return Path(named)
    if sys.platform.startswith(("linux", "freebsd")):
        return Path(os.environ.get(f"XDG_{kind.upper()}_HOME") or home / f".{kind}", "matplotlib")
    return home / ".matplotlib" if not local or (home / ".matplotlib").is_dir() else Path(local, "matplotlib")


def draw(
    name: str, height: float, paint: Callable[[Axes], None], *, beside: float = MARGIN, below: float = AXIS
) -> str:
    """One picture of one axes, `height` units high; see `draw_panels`."""
    return draw_panels(name, [height - below - MARGIN], lambda panels: paint(*panels), beside=beside, below=below)


def draw_panels(
    name: str,
    heights: Sequence[float],
    paint: Callable[[Sequence[Axes]], None],
    *,
    beside: float = MARGIN,
    below: float = AXIS,
    between: float = 0.0,
) -> str:
    """One picture as an ``<svg>`` element without a description, which the template adds.

    Its axes stand one below the other. All lengths are in units.

    Args:
        name: Unique on the page.
        heights: Of the axes, from the top.
        paint: Draws on the axes.
        beside: Room left of the axes, for numbers.
        below: Room under the last axes.
        between: Room between two axes.
    """
    load_matplotlib()
    from matplotlib.figure import Figure

    height = MARGIN + sum(heights) + (len(heights) - 1) * between + below
    with styled({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        figure.patch.set_visible(False)
        panels, top = [], height - MARGIN
        for own in heights:
            top -= own
            room = (beside / WIDTH, top / height, (WIDTH - beside - 2 * MARGIN) / WIDTH, own / height)
            panels.append(figure.add_axes(room))
            panels[-1].patch.set_visible(False)
            top -= between
        paint(panels)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return inline(buffer.getvalue(), WIDTH, height)


def inline(svg: str, width: float, height: float) -> str:
    """Turns a stand-alone SVG file into an element for a page with other pictures."""
    inner = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    inner = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", inner, flags=re.DOTALL)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', inner))
    inner = re.sub(r' id="(key )?([^"]+)"', lambda match: _identified(match, used), inner)
    inner = re.sub(r"(<text style=\"[^\">]*?)font-family: [^;\">]+; ", r"\1", inner)  # the page has its own
    inner = re.sub(r"#0a0b0([1-9])", lambda match: f"var(--{_VARIABLES[int(match[1]) - 1]})", inner)
    inner = re.sub(r"\n\s*", "\n", inner).strip()
    return f'<svg viewBox="0 0 {width:g} {height:g}" focusable="false">\n{inner}\n</svg>'


def _identified(identifier: re.Match[str], used: set[str]) -> str:
    """What remains of an id: the filter key of a row as a class, and an id that is referred to."""
    if identifier[1]:
        return f' class="{identifier[2]}"'
    return identifier[0] if identifier[2] in used else ""


def draw_rows(name: str, count: int, paint: Callable[[Axes], None]) -> str:
    """A picture that is a list of rows: row `n`, from the top, is between `n` and `n + 1`; the side has no numbers."""

    def paint_rows(axes: Axes) -> None:
        axes.set_ylim(count, 0)
        axes.yaxis.set_visible(False)
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="x")
        paint(axes)

    return draw(name, MARGIN + count * ROW + AXIS, paint_rows)


def row_label(axes: Axes, row: int, label: str, figure: str, *, strong: bool = False) -> None:
    """Writes a row's label at the left and its figure at the right, both above the mark."""
    label = shortened(" ".join(spelled(label).split()), LONGEST_ROW - len(figure))
    box = {"facecolor": SURFACE, "edgecolor": "none", "pad": 1.5}  # hides the grid behind letters
    weight, place = "bold" if strong else "normal", axes.get_yaxis_transform()
    axes.text(0, row + 0.4, label, ha="left", transform=place, weight=weight, bbox=box)
    axes.text(1, row + 0.4, figure, ha="right", transform=place, weight=weight, bbox=box)


def shortened(label: str, most: int) -> str:
    """A label, shortened to `most` characters."""
    return label if len(label) <= most else f"{label[: most - 1].rstrip()}…"


def drawable(value: float | None) -> bool:
    """Whether a figure can be drawn; a broken file may hold any value."""
    return value is not None and 1e-12 < value < 1e15


def compact(value: float) -> str:
    """A short number for an axis: ``850``, ``1.2k``, ``3M``."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def steps(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers from low to high; the first and last may lie just beyond."""
    load_matplotlib()
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(count).tick_values(low, high)]


def log_steps(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2, 5, 10, or fewer of them; even steps on a narrow axis."""
    if high < 4 * low:
        return [tick for tick in steps(low, high) if low <= tick <= high and tick > 0]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits if low <= digit * 10.0**decade <= high]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]
