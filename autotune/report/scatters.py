"""The report's pictures with two axes: every burst of the search, memory against batch, the timed blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.report.drawing import AFTER, BEFORE, FAILED, SMALL, SURFACE, TARGET, compact, draw, drawable, steps
from autotune.results.result import Result
from autotune.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Mark = TypeVar("Mark")
HEIGHT = 250.0
LEFT, BOTTOM = 48.0, 46.0
MOST_MARKS = 1000
"""Most marks in a picture; of more, every n-th is drawn, since all would make it large without showing more."""


def history_picture(result: Result) -> str | None:
    """The score of each burst in the order of the run; failures are crosses at the bottom. None without any of both."""
    trials = list(enumerate(result.trials, 1))
    ended = [
        (number, score, trial.disturbance is not None)
        for number, trial in trials
        if (score := result.score_of(trial)) is not None and drawable(score)
    ]
    failed = [number for number, trial in trials if not trial.ok]
    if not (ended or failed):
        return None
    before = [score] if (score := result.score_of(result.baseline)) is not None and drawable(score) else []

    def paint(axes: Axes) -> None:
        top = max([*before, *(score for _, score, _ in ended)], default=1.0)
        for score in before:
            axes.axhline(score, color=BEFORE, lw=1.4, ls="--")
        if ended:
            best = list(accumulate((score for _, score, _ in ended), max))
            ran = [number for number, _, _ in ended]
            axes.step([*ran, len(trials)], [*best, best[-1]], where="post", color=AFTER, lw=1.4)
        for disturbed, face in ((False, AFTER), (True, SURFACE)):
            _dots(axes, [(number, score) for number, score, hit in ended if hit is disturbed], AFTER, face)
        _crosses(axes, failed, top * 0.03)
        axes.set_xlim(0.4, len(trials) + 0.6)
        from_zero(axes, top)
        numbers = [tick for tick in steps(1, len(trials), 5) if 1 <= tick <= len(trials) and tick == int(tick)]
        axes.set_xticks(numbers, [f"{tick:g}" for tick in numbers])
        axes.set_xlabel("burst")

    return draw("history", HEIGHT, paint, beside=LEFT, below=BOTTOM)


def memory_picture(taken: Sequence[tuple[int, int]], exceeded: Sequence[int], target: int | None) -> str | None:
    """Peak memory against the micro-batch, on a logarithmic axis, and the target.

    Args:
        taken: The micro-batch of each burst, and its peak in bytes.
        exceeded: Micro-batches that ran out of memory.
        target: Bytes that a burst may use; None if unknown.
    """
    batches = [*(batch for batch, _ in taken), *exceeded]
    if not batches:
        return None

    def paint(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        fewest, most = min(batches), max(batches)
        sizes = [float(size) for _, size in taken]
        if target is not None:
            sizes.append(target)
            axes.axhline(target, color=TARGET, lw=1.8, ls="-.")
            place: Any = {"xycoords": axes.get_yaxis_transform(), "xytext": (0, 4), "textcoords": "offset points"}
            axes.annotate(f"target {format_bytes(target)}", (0.01, target), color=TARGET, **place)
        _dots(axes, taken, AFTER, AFTER)
        _crosses(axes, exceeded, target or max(sizes, default=1.0))
        _memory_axis(axes, max(sizes, default=1.0))
        axes.set_xlim(fewest / 1.25, most * 1.25)
        ticks = _doublings(fewest, most) or sorted({fewest, most})
        axes.minorticks_off()
        axes.set_xticks(ticks, [f"{tick:,.6g}" for tick in ticks])
        axes.set_xlabel("samples of a micro-batch")

    return draw("memory", HEIGHT, paint, beside=LEFT + 20, below=BOTTOM)


def thinned(marks: Sequence[Mark], most: int = MOST_MARKS) -> list[Mark]:
    """Every n-th mark, so that at most `most` remain."""
    return list(marks[:: -(-len(marks) // most) or 1])


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [across for across, _ in pairs], [up for _, up in pairs]


def _dots(axes: Axes, marks: Sequence[tuple[float, float]], edge: str, face: str) -> None:
    axes.plot(*_columns(thinned(marks)), "o", ms=6, mfc=face, mec=edge, mew=1.4, clip_on=False)


def _crosses(axes: Axes, across: Sequence[float], height: float) -> None:
    shown = thinned(across)
    axes.plot(shown, [height] * len(shown), "x", color=FAILED, ms=8.5, mew=2.2, clip_on=False)


def from_zero(axes: Axes, top: float) -> None:
    """Scales the axis from zero to just above the top, with lines across the picture."""
    axes.set_ylim(0, top * 1.06)
    number_lines(axes, [tick for tick in steps(0, top) if tick <= top * 1.06], compact)


def number_lines(axes: Axes, ticks: Sequence[float], words: Callable[[float], str]) -> None:
    """Draws lines across the picture with numbers at the left; omits a number that the upper edge would cut off.

    Set the limits of the axis first.
    """
    highest = axes.bbox.y1 - SMALL / 2 * axes.figure.dpi / 72
    ticks = [tick for tick in ticks if axes.transData.transform((1, tick))[1] <= highest]
    axes.set_yticks(ticks, [words(tick) for tick in ticks])
    axes.tick_params(axis="both", length=0)
    axes.grid(axis="y")


def _memory_axis(axes: Axes, top: float) -> None:
    """Scales the axis for sizes, from zero, in a binary unit."""
    unit = 2.0 ** (10 * max(0, min(4, (int(top).bit_length() - 1) // 10)))
    axes.set_ylim(0, top * 1.12)  # room for the label above the target
    ticks = [tick * unit for tick in steps(0, top / unit) if tick * unit <= top * 1.12]
    number_lines(axes, ticks, lambda size: format_bytes(size).replace(".00", "").replace(".0", ""))


def _doublings(low: float, high: float, most: int = 6) -> list[float]:
    """At most about `most` powers of two from low to high; empty if there are fewer than two."""
    powers = [2.0**power for power in range(-2, 60) if low <= 2.0**power <= high]
    return powers[:: -(-len(powers) // most)] if len(powers) > 1 else []
