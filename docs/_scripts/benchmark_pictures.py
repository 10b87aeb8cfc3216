"""Draws benchmark ratios with their intervals as plain SVG, from the same files as the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmark_tables import GUIDES, read

WIDTH, LABELS, ROW, TOP, BOTTOM = 760, 190, 30, 14, 56
LARGEST = 3.5
COLOURS = ("#8a5a00", "#1f5fa8")


class Ratio(NamedTuple):
    """One point of a chart, with the ends of its interval."""

    series: int
    ratio: float
    low: float
    high: float


def guides() -> str:
    """Draws the speed-ups of each guide's advice and of autotune's answer, over what the guide's reader trains with."""
    rows = []
    for guide in read("guides")["guides"]:
        sides = {row["name"]: row["over_before"] for row in guide["rows"]}
        rows.append((GUIDES[guide["guide"]], [_point(0, sides["guide"]), _point(1, sides["tuned"])]))
    return _chart("Speed over before: the guide's advice, and autotune", ("the guide's advice", "autotune"), rows)


def _point(series: int, measured: Any) -> Ratio:
    return Ratio(series, measured["ratio"], *measured["ci95"])


def _chart(title: str, series: Sequence[str], rows: Sequence[tuple[str, Sequence[Ratio]]]) -> str:
    height = TOP + ROW * len(rows) + BOTTOM
    bottom = TOP + ROW * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#1d2733">',
        f'  <title id="title">{title}</title>',
        f'  <rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for tick in range(int(2 * LARGEST) + 1):
        x, strong = _x(tick / 2), tick == 2  # the line at ratio 1: no difference
        lines.append(f'  <path d="M{x:.1f} {TOP}V{bottom}" stroke="{"#5b6775" if strong else "#d8dee6"}"/>')
        lines.append(f'  <text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick / 2:g} ×</text>')
    for number, (label, points) in enumerate(rows):
        middle = TOP + ROW * (number + 0.5)
        lines.append(f'  <text x="{LABELS - 12}" y="{middle + 4:.1f}" text-anchor="end">{label}</text>')
        for point in points:
            y, colour = middle + (-5 if point.series == 0 else 5), COLOURS[point.series]
            whisker = f"M{_x(point.low):.1f} {y:.1f}H{_x(point.high):.1f}"
            lines.append(f'  <path d="{whisker}" stroke="{colour}" stroke-width="2"/>')
            lines.append(f'  <circle cx="{_x(point.ratio):.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
    for number, name in enumerate(series):
        x = LABELS + 270 * number
        lines.append(f'  <circle cx="{x}" cy="{bottom + 38}" r="4" fill="{COLOURS[number]}"/>')
        lines.append(f'  <text x="{x + 12}" y="{bottom + 42}">{name}, 95 % interval</text>')
    return "\n".join([*lines, "</svg>", ""])


def _x(ratio: float) -> float:
    """The horizontal position of a ratio."""
    return LABELS + (WIDTH - LABELS - 24) * ratio / LARGEST


PICTURES = {"guides.svg": guides}
