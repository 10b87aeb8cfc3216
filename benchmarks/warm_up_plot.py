"""A picture of how processes warm up, as SVG: the rate over the process's own time, and where its beginning is cut."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import output

WIDTH, HEIGHT, MARGIN, GAP, COLUMNS = 420, 150, 48, 60, 2
TOP_RATE = 1.25
"""Of the rate when warm: what is above is drawn at the edge."""
COLOURS = ("#1f77b4", "#d62728")


def write_plot(rows: dict[str, dict[str, Any]]) -> Path:
    """Writes warm_up.svg beside the figures: a panel a workload, a line a side, dashes where it is cut."""
    columns = min(COLUMNS, len(rows))
    across, down = WIDTH + MARGIN + GAP // 2, HEIGHT + GAP
    height = -(-len(rows) // columns) * down + GAP + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * across + MARGIN} {height}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    ]
    for number, side in enumerate(next(iter(rows.values()))["sides"]):
        x = MARGIN + 160 * number
        parts.append(f'<rect x="{x}" y="16" width="16" height="4" fill="{COLOURS[number]}"/>')
        parts.append(f'<text x="{x + 24}" y="22">{escape(side["name"])}</text>')
    parts.append(f'<text x="{MARGIN + 320}" y="22">dashes: counted from here; dots: to here</text>')
    for number, (name, row) in enumerate(rows.items()):
        left, top = MARGIN + number % columns * across, GAP + number // columns * down
        parts += [f'<g transform="translate({left},{top})">', *_panel(name, row), "</g>"]
    parts.append("</svg>")
    path = output.FOLDER / "warm_up.svg"
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return path.relative_to(output.FOLDER.parents[1])


def _panel(name: str, row: dict[str, Any]) -> Iterator[str]:
    longest = max(side["block_ends"][-1] for side in row["sides"])
    yield f'<text x="0" y="-8" font-weight="bold">{escape(name)}: rate, as a share of the rate when warm</text>'
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        yield f'<line x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="-26" y="{y + 4:.1f}">{share}</text>'
    for quarter in range(5):
        x, seconds = WIDTH * quarter / 4, longest * quarter / 4
        yield f'<text x="{x:.0f}" y="{HEIGHT + 15}" text-anchor="middle">{seconds:.1f} s</text>'
    for colour, side, cut in zip(COLOURS, row["sides"], row["cut_seconds"], strict=True):
        ends = side["block_ends"]
        starts = [side["opening_seconds"], *ends[:-1]]
        middles = [(start + end) / 2 for start, end in zip(starts, ends, strict=True)]
        points = " ".join(
            f"{WIDTH * middle / longest:.1f},{_y(rate / side['warm_rate']):.1f}"
            for middle, rate in zip(middles, side["rates"], strict=True)
        )
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        for seconds, dashes in ((cut, "6 3"), (ends[row["end"] - 1], "1 3")):
            x = WIDTH * seconds / longest
            yield (
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}" stroke="{colour}" stroke-dasharray="{dashes}"/>'
            )


def _y(share: float) -> float:
    return HEIGHT * (1 - min(TOP_RATE, share) / TOP_RATE)
