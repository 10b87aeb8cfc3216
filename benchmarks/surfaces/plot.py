"""A picture of a replay, as SVG: how fast the chosen config is, over virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.output import FOLDER

WIDTH, HEIGHT, MARGIN, GAP = 560, 300, 44, 56
LEGEND_WIDTH = 190
FLOOR = 0.4
COLOURS = ("#d62728", "#ff9896", "#9467bd", "#1f77b4", "#17becf", "#7f7f7f", "#bcbd22", "#8c564b", "#2ca02c")


def write_plot(results: dict[str, Any], budget_seconds: float) -> Path:
    """Writes replay.svg beside the figures: a panel a surface, medians as lines, 10th to 90th percentiles as bands."""
    names = list(next(iter(results.values()))["curves"])
    height = len(results) * (HEIGHT + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2 * MARGIN + LEGEND_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, (surface, result) in enumerate(results.items()):
        top = GAP + number * (HEIGHT + GAP)
        parts += [f'<g transform="translate({MARGIN},{top})">', *_panel(surface, result, budget_seconds), "</g>"]
    for number, name in enumerate(names):
        y = GAP + 18 * number
        x = WIDTH + MARGIN + 20
        parts.append(f'<rect x="{x}" y="{y}" width="16" height="4" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 24}" y="{y + 6}">{escape(name)}</text>')
    parts.append("</svg>")
    path = FOLDER / "replay.svg"
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return path.relative_to(FOLDER.parents[1])


def _panel(surface: str, result: dict[str, Any], budget_seconds: float) -> Iterator[str]:
    yield f'<text x="0" y="-10" font-weight="bold">{escape(surface)}: fraction of the optimum</text>'
    for share in (0.4, 0.6, 0.8, 0.95, 1.0):
        y = _y(share)
        yield f'<line x1="0" x2="{WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/><text x="-34" y="{y + 4}">{share}</text>'
    for minute in (0, 1, 2, 5, 10):
        x = WIDTH * 60 * minute / budget_seconds
        yield f'<text x="{x:.0f}" y="{HEIGHT + 16}" text-anchor="middle">{minute} min</text>'
    for number, curve in enumerate(result["curves"].values()):
        colour = COLOURS[number % len(COLOURS)]
        xs = [WIDTH * (step + 1) / len(curve) for step in range(len(curve))]
        low = [f"{x:.1f},{_y(values[0]):.1f}" for x, values in zip(xs, curve, strict=True)]
        high = [f"{x:.1f},{_y(values[2]):.1f}" for x, values in zip(xs, curve, strict=True)]
        middle = [f"{x:.1f},{_y(values[1]):.1f}" for x, values in zip(xs, curve, strict=True)]
        yield f'<polygon points="{" ".join([*low, *reversed(high)])}" fill="{colour}" opacity="0.08"/>'
        yield f'<polyline points="{" ".join(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _y(share: float) -> float:
    return HEIGHT * (1 - (max(FLOOR, share) - FLOOR) / (1 - FLOOR))
