"""The report's pictures that are lists of rows: rates, the worth of each change, ceilings.

Each function returns None if the result has nothing to draw; the section then says why in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from autotune.measuring import Interval
from autotune.report.drawing import (
    AFTER,
    BEFORE,
    FAILED,
    INK,
    MUTED,
    PART,
    SURFACE,
    compact,
    draw_rows,
    drawable,
    log_steps,
    row_label,
    steps,
)
from autotune.results.compare import Row
from autotune.results.result import Result
from autotune.results.summary import bare_rate, gain_text, rate_interval, ratios
from autotune.units import format_rate
from autotune.wording import or_dash, ratio_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MARK, THICK = 0.70, 0.28
"""Position of the mark in a row, and thickness of a bar."""
HALF = 0.08
"""Half the thickness of one of two bars in a row."""
ALL, TOGETHER = "all changes", "together, beyond alone"


class Bar(NamedTuple):
    """A rate with its interval."""

    label: str
    rate: float
    interval: Interval | None
    colour: str


def rates_picture(bars: Sequence[Bar], name: str) -> str | None:
    """Rates on an axis from zero, with their intervals."""
    return _bars_picture(name, [(bar.label, format_rate(bar.rate), (bar,), "") for bar in bars])


def both_sides(result: Result) -> list[Bar]:
    """The rates of baseline and answer, as far as they were measured."""
    return [
        Bar(label, side.measurement.samples_per_second, rate_interval(side), colour)
        for label, side, colour in (("before", result.baseline, BEFORE), ("after", result.best, AFTER))
        if side.measurement is not None
    ]


def machines_picture(name: str, machines: Sequence[Row], keys: Sequence[str]) -> str | None:
    """Rates before and after of each machine, on an axis from zero; `keys` are the filter keys of the rows."""
    lines = []
    for machine, key in zip(machines, keys, strict=True):
        before, after = machine.before_samples_per_second, machine.after_samples_per_second
        bars = (
            Bar("before", before or 0.0, machine.before_ci95, BEFORE),
            Bar("after", after or 0.0, machine.after_ci95, AFTER),
        )
        lines.append((machine.label, f"{or_dash(before, bare_rate)} → {or_dash(after, bare_rate)}", bars, key))
    return _bars_picture(name, lines)


def amounts_picture(name: str, amounts: Sequence[tuple[str, float, str]]) -> str | None:
    """An amount of each machine, on an axis from zero: the machine, the amount and the filter key of the row."""
    bars = [Bar(label, amount, None, PART) for label, amount, _ in amounts]
    return _bars_picture(
        name, [(bar.label, bare_rate(bar.rate), (bar,), key) for bar, (*_, key) in zip(bars, amounts, strict=True)]
    )


def _bars_picture(name: str, lines: Sequence[tuple[str, str, tuple[Bar, ...], str]]) -> str | None:
    """Rows with a label, a figure, one or two bars and a filter key; a bar that cannot be drawn leaves a gap."""
    drawn = [line for line in lines if any(drawable(bar.rate) for bar in line[2])]
    if not drawn:
        return None

    def paint(axes: Axes) -> None:
        right = 0.0
        for row, (label, figure, bars, key) in enumerate(drawn):
            others = set(axes.get_children())
            row_label(axes, row, label, figure)
            thick, places = (THICK, (0.0,)) if len(bars) == 1 else (2 * HALF, (-HALF, HALF))
            for bar, place in zip(bars, places, strict=True):
                if drawable(bar.rate):
                    axes.barh(row + place + MARK, bar.rate, thick, color=bar.colour)
                    _error_bar(axes, row + place, bar.rate, bar.interval)
                    right = max(right, bar.rate, *filter(drawable, bar.interval or ()))
            for artist in set(axes.get_children()) - others if key else ():
                artist.set_gid(f"key {key}")
        axes.set_xlim(0, right * 1.04)
        ticks = [tick for tick in steps(0, right) if tick <= right * 1.04]
        axes.set_xticks(ticks, [compact(tick) for tick in ticks])

    return draw_rows(name, len(drawn), paint)


class Step(NamedTuple):
    """A step of the waterfall: speeds relative to the baseline; `certainty` is the interval in words."""

    label: str
    start: float
    ratio: float
    interval: Interval | None
    certainty: str = ""


def waterfall_steps(result: Result) -> list[Step]:
    """The worth of each change, one after the other, up to the confirmed speed-up.

    A change's worth is the winner's rate over its rate without that change, so these factors multiply. The rest is the
    changes' joint effect, or unknown to the search.
    """
    waterfall, reached = [], 1.0
    for row in result.ablation:
        if all(1e-3 < ratio < 1e3 for ratio in (row.ratio, *row.ci95)):
            waterfall.append(Step(row.knob, reached, row.ratio, row.ci95, ratios(row.ci95)))
            reached *= row.ratio
    speedup = result.speedup
    if waterfall and speedup is not None and 1e-3 < speedup.ratio < 1e6:
        waterfall.append(Step(TOGETHER, reached, speedup.ratio / reached, None))
        waterfall.append(Step(ALL, 1.0, speedup.ratio, speedup.ci95, ratios(speedup.ci95)))
    return waterfall


def waterfall_picture(result: Result) -> str | None:
    """The steps from 1× to the confirmed speed-up, on a logarithmic axis, so that equal factors have equal lengths."""
    waterfall = waterfall_steps(result)
    if not waterfall:
        return None

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        for row, (label, start, ratio, interval, certainty) in enumerate(waterfall):
            figure = gain_text(ratio, interval) if interval is not None else ratio_text(ratio)
            figure += f" ({certainty})" if certainty else ""
            row_label(axes, row, label, figure, strong=label == ALL)
            is_clear = interval is not None and not interval.low <= 1 <= interval.high
            colour = (AFTER if ratio >= 1 else FAILED) if is_clear else MUTED
            # Keeps a step of almost zero visible.
            axes.barh(row + MARK, start * ratio - start or start * 1e-3, THICK, left=start, color=colour)
            if interval is not None:
                _error_bar(axes, row, start * ratio, Interval(start * interval.low, start * interval.high))
            if row + 1 < len(waterfall) and waterfall[row + 1].label != ALL:
                axes.plot([start * ratio] * 2, [row + MARK, row + 1 + MARK], color=MUTED, lw=0.8, zorder=0)
        ends = [step.start * factor for step in waterfall for factor in (1.0, step.ratio, *(step.interval or ()))]
        _log_axis(axes, ends, 1.03, "×")
        axes.axvline(1, color=INK, lw=1)

    return draw_rows("waterfall", len(waterfall), paint)


def ceilings_picture(result: Result) -> str | None:
    """The reached rate and the ceiling of each part alone, as dots on a logarithmic axis."""
    after = result.best.measurement
    parts = {part: rate for part, rate in result.diagnosis.ceilings.items() if rate is not None and drawable(rate)}
    if after is None or not parts or not drawable(after.samples_per_second):
        return None
    reached = after.samples_per_second
    bars = [Bar("reached, end to end", reached, rate_interval(result.best), AFTER)]
    bars += [Bar(f"{part} alone", parts[part], None, PART) for part in sorted(parts, key=parts.__getitem__)]

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        for row, (label, rate, interval, colour) in enumerate(bars):
            beside = f" · {ratio_text(rate / reached)}" if row else ""
            row_label(axes, row, label, f"{bare_rate(rate)}{beside}", strong=not row)
            axes.plot([reached, rate], [row + MARK] * 2, color=MUTED, lw=1)
            _error_bar(axes, row, rate, interval)
            axes.plot([rate], [row + MARK], "o" if not row else "D", color=colour, ms=9, mec=SURFACE, mew=1)
        ends = [end for bar in bars for end in (bar.rate, *(bar.interval or ()))]
        _log_axis(axes, ends, 1.2)
        axes.axvline(reached, color=AFTER, lw=1, ls=":", zorder=0)

    return draw_rows("ceilings", len(bars), paint)


def _error_bar(axes: Axes, row: float, value: float, interval: Interval | None) -> None:
    """Draws the interval around a mark, if it is known."""
    if interval is not None and all(map(drawable, interval)) and interval.low <= value <= interval.high:
        spread = [[value - interval.low], [interval.high - value]]
        axes.errorbar([value], [row + MARK], xerr=spread, fmt="none", ecolor=INK, elinewidth=1.4, capthick=1.4)


def _log_axis(axes: Axes, values: Sequence[float], room: float, unit: str = "") -> None:
    """Fits a logarithmic axis to the values, with a margin at both ends."""
    drawn = [value for value in values if drawable(value)]
    low, high = min(drawn) / room, max(drawn) * room
    axes.set_xlim(low, high)
    ticks = log_steps(low, high)
    axes.minorticks_off()
    axes.set_xticks(ticks, [f"{compact(tick)}{unit}" for tick in ticks])
