"""The report's pictures that are lists of rows: rates, what each change was worth, ceilings, shares of time.

Each function returns None where the result has nothing to draw; the section then says why in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from autotune.measuring import Interval
from autotune.report.drawing import (
    AFTER,
    AXIS,
    BEFORE,
    FAILED,
    INK,
    MARGIN,
    MUTED,
    PART,
    ROW,
    SURFACE,
    compact,
    draw,
    drawable,
    log_steps,
    row_label,
    rows,
    steps,
)
from autotune.results.compare import Row
from autotune.results.result import AblationRow, Result
from autotune.results.summary import bare_rate, rate_interval, ratios
from autotune.units import format_rate
from autotune.wording import percent, ratio_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MARK, THICK = 0.70, 0.28
"""Where in a row its mark lies, and how thick a bar is."""
HALF = 0.08
"""Of the thickness of one of two bars in a row."""
ALL, TOGETHER = "all changes", "together, beyond alone"


class Bar(NamedTuple):
    """A rate with its interval; zeros where it has none."""

    label: str
    rate: float
    interval: Interval
    colour: str


def rates_picture(bars: Sequence[Bar], name: str) -> str | None:
    """Rates from zero on, with their intervals."""
    bars = [bar for bar in bars if drawable(bar.rate)]
    if not bars:
        return None

    def paint(axes: Axes) -> None:
        rows(axes, len(bars))
        for row, (label, rate, interval, colour) in enumerate(bars):
            row_label(axes, row, label, format_rate(rate))
            axes.barh(row + MARK, rate, THICK, color=colour)
            _error_bar(axes, row, rate, interval)
        right = max(max(bar.rate, bar.interval.high if drawable(bar.interval.high) else 0) for bar in bars)
        axes.set_xlim(0, right * 1.04)
        ticks = [tick for tick in steps(0, right) if tick <= right * 1.04]
        axes.set_xticks(ticks, [compact(tick) for tick in ticks])

    return draw(name, _height(len(bars)), paint)


def both_sides(result: Result) -> list[Bar]:
    """The rates before and after."""
    found = []
    for label, side, colour in (("before", result.baseline, BEFORE), ("after", result.best, AFTER)):
        if side.measurement is not None:
            found.append(Bar(label, side.measurement.samples_per_second, rate_interval(side), colour))
    return found


def machines_picture(name: str, machines: Sequence[Row]) -> str | None:
    """Rates before and after of each machine, from zero on."""
    found = [
        one for one in machines if any(map(drawable, (one.before_samples_per_second, one.after_samples_per_second)))
    ]
    if not found:
        return None

    def paint(axes: Axes) -> None:
        rows(axes, len(found))
        right = 0.0
        for row, one in enumerate(found):
            before, after = one.before_samples_per_second, one.after_samples_per_second
            row_label(axes, row, one.label, f"{_bare(before)} → {_bare(after)}")
            for rate, ci95, colour, place in (
                (before, one.before_ci95, BEFORE, row - HALF),
                (after, one.after_ci95, AFTER, row + HALF),
            ):
                interval = ci95 or Interval(0, 0)
                if rate is not None and drawable(rate):
                    axes.barh(place + MARK, rate, 2 * HALF, color=colour)
                    _error_bar(axes, place, rate, interval)
                    right = max(right, rate, interval.high if drawable(interval.high) else 0)
        axes.set_xlim(0, right * 1.04)
        ticks = [tick for tick in steps(0, right) if tick <= right * 1.04]
        axes.set_xticks(ticks, [compact(tick) for tick in ticks])

    return draw(name, _height(len(found)), paint)


class Step(NamedTuple):
    """A step of the waterfall: from one speed to the next, both relative to the baseline."""

    label: str
    start: float
    ratio: float
    interval: Interval | None


def waterfall_steps(result: Result) -> list[Step]:
    """What each change was worth, one after the other, up to the confirmed speed-up.

    A change's worth is the winner's rate over its rate without that change, so that worths multiply; what is then
    still missing is what changes do together only, or what was not reverted alone.
    """
    found, reached = [], 1.0
    for row in result.ablation:
        if not _drawable_row(row):
            continue
        found.append(Step(row.knob, reached, row.ratio, row.ci95))
        reached *= row.ratio
    speedup = result.speedup
    if found and speedup is not None and 1e-3 < speedup.ratio < 1e6:
        found.append(Step(TOGETHER, reached, speedup.ratio / reached, None))
        found.append(Step(ALL, 1.0, speedup.ratio, speedup.ci95))
    return found


def waterfall_picture(result: Result) -> str | None:
    """The steps from 1× to the confirmed speed-up, on a logarithmic axis: equal factors are equal lengths."""
    found = waterfall_steps(result)
    if not found:
        return None

    def paint(axes: Axes) -> None:
        rows(axes, len(found))
        axes.set_xscale("log")
        for row, (label, start, ratio, interval) in enumerate(found):
            spread = f" ({ratios(interval)})" if interval is not None else ""
            row_label(axes, row, label, f"{ratio_text(ratio)}{spread}", strong=label == ALL)
            colour = MUTED if label == TOGETHER else AFTER if ratio >= 1 else FAILED
            # A step of next to nothing is still seen.
            axes.barh(row + MARK, start * ratio - start or start * 1e-3, THICK, left=start, color=colour)
            if interval is not None:
                _error_bar(axes, row, start * ratio, Interval(start * interval.low, start * interval.high))
            if row + 1 < len(found) and found[row + 1].label != ALL:
                axes.plot([start * ratio] * 2, [row + MARK, row + 1 + MARK], color=MUTED, lw=0.8, zorder=0)
        ends = [end for step in found for end in _ends(step)]
        low, high = min(ends) / 1.03, max(ends) * 1.03
        axes.set_xlim(low, high)
        _log_ticks(axes, low, high, "×")
        axes.axvline(1, color=INK, lw=1)

    return draw("waterfall", _height(len(found)), paint)


def ceilings_picture(result: Result) -> str | None:
    """What was reached beside what each part alone could reach, as dots on a logarithmic axis."""
    after = result.best.measurement
    parts = {part: rate for part, rate in result.diagnosis.ceilings.items() if rate is not None and drawable(rate)}
    if after is None or not parts or not drawable(after.samples_per_second):
        return None
    reached = after.samples_per_second
    found = [Bar("reached, end to end", reached, rate_interval(result.best), AFTER)]
    found += [
        Bar(f"{part} alone", rate, Interval(0, 0), PART) for part, rate in sorted(parts.items(), key=lambda one: one[1])
    ]

    def paint(axes: Axes) -> None:
        rows(axes, len(found))
        axes.set_xscale("log")
        for row, (label, rate, interval, colour) in enumerate(found):
            beside = f" · {ratio_text(rate / reached)}" if row else ""
            row_label(axes, row, label, f"{bare_rate(rate)}{beside}", strong=not row)
            axes.plot([reached, rate], [row + MARK] * 2, color=MUTED, lw=1)
            _error_bar(axes, row, rate, interval)
            axes.plot([rate], [row + MARK], "o" if not row else "D", color=colour, ms=9, mec=SURFACE, mew=1)
        ends = [bar.rate for bar in found] + [end for end in found[0].interval if drawable(end)]
        low, high = min(ends) / 1.2, max(ends) * 1.2
        axes.set_xlim(low, high)
        _log_ticks(axes, low, high, "")
        axes.axvline(reached, color=AFTER, lw=1, ls=":", zorder=0)

    return draw("ceilings", _height(len(found)), paint)


class Share(NamedTuple):
    """A share of time, or of a resource, before and after; None where it is not known."""

    label: str
    before: float | None
    after: float | None


def shares_picture(shares: Sequence[Share]) -> str | None:
    """Shares from 0 to 100 %, before and after."""
    found = [
        share
        for share in shares
        if any(value is not None and -0.01 <= value <= 1.5 for value in (share.before, share.after))
    ]
    if not found:
        return None

    def paint(axes: Axes) -> None:
        rows(axes, len(found))
        for row, (label, before, after) in enumerate(found):
            row_label(axes, row, label, f"{_percent(before)} → {_percent(after)}")
            known = [min(max(value, 0.0), 1.0) for value in (before, after) if value is not None]
            axes.plot([0, 1], [row + MARK] * 2, color=MUTED, lw=0.6, zorder=0)
            axes.plot(known, [row + MARK] * len(known), color=MUTED, lw=2)
            for value, size, colour, face in ((before, 11, BEFORE, SURFACE), (after, 6, AFTER, AFTER)):
                if value is not None:
                    at = min(max(value, 0.0), 1.0)
                    axes.plot([at], [row + MARK], "o", ms=size, mfc=face, mec=colour, mew=2, clip_on=False)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        first, *_, last = axes.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")

    return draw("shares", _height(len(found)), paint)


def _percent(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _bare(rate: float | None) -> str:
    return "–" if rate is None else bare_rate(rate)


def _height(count: int) -> float:
    return MARGIN + count * ROW + AXIS


def _error_bar(axes: Axes, row: float, value: float, interval: Interval) -> None:
    """The interval around a mark; none where it is not known."""
    if drawable(interval.low) and drawable(interval.high) and interval.low <= value <= interval.high:
        spread = [[value - interval.low], [interval.high - value]]
        axes.errorbar([value], [row + MARK], xerr=spread, fmt="none", ecolor=INK, elinewidth=1.4, capthick=1.4)


def _drawable_row(row: AblationRow) -> bool:
    return all(1e-3 < ratio < 1e3 for ratio in (row.ratio, *row.ci95))


def _ends(step: Step) -> Iterator[float]:
    yield from (step.start, step.start * step.ratio)
    for end in step.interval or ():
        if 1e-3 < end < 1e6 and math.isfinite(end):
            yield step.start * end


def _log_ticks(axes: Axes, low: float, high: float, unit: str) -> None:
    ticks = log_steps(low, high)
    axes.minorticks_off()
    axes.set_xticks(ticks, [f"{compact(tick)}{unit}" for tick in ticks])
