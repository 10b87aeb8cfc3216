"""Draws the rooms of the package from the layers in pyproject.toml, and the paths of a tuning through them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
WIDTH, LEFT, ROOMS, ROW, GAP = 1000, 12, 640, 50, 8
WITH_TORCH = {"integrations", "bursts", "training", "workload", "recorder", "timing", "torch_settings", "doctor"}
WORDS = {
    "cli": "the command line",
    "mcp": "tools for agents",
    "api": "autotune.tune()",
    "commands": "one sub-command each",
    "sessions": "one tuning, one check, one fleet: end to end",
    "report": "HTML pages",
    "terminal": "tables, progress",
    "search": "what to run and believe",
    "fleet": "machines elsewhere",
    "doctor": "can tuning be trusted here?",
    "patching": "writes a result into a script",
    "scripts": "runs training scripts as they are",
    "bursts": "processes that train and measure",
    "integrations": "frameworks' arguments",
    "training": "applies a config, in bursts and in your training",
    "results": "files, comparisons",
    "workload": "what is trained",
    "measuring": "records and statistics",
    "knobs": "every knob, once",
    "hardware": "what this machine has",
    "recorder": "runs inside a script",
    "timing": "times blocks, switches configs; in hosts and in scripts",
    "torch_settings": "sets torch to what a knob says, and undoes it",
    "sandbox": "the kernel keeps your files",
}


class Lane(NamedTuple):
    """A path through the rooms, drawn beside them: each stop is a room and what happens there."""

    title: str
    x: int
    colour: str
    stops: tuple[tuple[str, str], ...]


LANES = (
    Lane(
        "autotune --model",
        670,
        "#1f5fa8",
        (
            ("commands", "options"),
            ("sessions", "one tuning"),
            ("search", "next players"),
            ("bursts", "a host plays them"),
            ("training", "config applied"),
            ("timing", "blocks timed"),
        ),
    ),
    Lane(
        "autotune run",
        840,
        "#8a5a00",
        (
            ("commands", "options"),
            ("sessions", "one tuning"),
            ("search", "next players"),
            ("scripts", "the script starts"),
            ("recorder", "its loop is found"),
            ("timing", "blocks timed"),
        ),
    ),
)


def text() -> str:
    """The picture as SVG."""
    layers = _layers()
    height = 2 * LEFT + 24 + len(layers) * (ROW + GAP) + 44
    tops = {room: LEFT + 24 + row * (ROW + GAP) for row, layer in enumerate(layers) for room in layer}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title" '
        'font-family="system-ui, sans-serif" font-size="12.5" fill="#3d4a59">',
        '  <title id="title">The rooms of autotune, each of which imports only rooms below it, and two paths</title>',
        f'  <rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for layer in layers:
        width = (ROOMS - GAP * (len(layer) - 1)) / len(layer)
        for place, room in enumerate(layer):
            lines += _box(room, LEFT + place * (width + GAP), tops[room], width)
    for lane in LANES:
        lines += _lane(lane, tops)
    lines += [
        f'  <text x="{LEFT}" y="{height - 32}">Imports point downward, and never sideways.</text>',
        f'  <text x="{LEFT}" y="{height - 14}">Orange: works with torch, which the parent never imports.</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _layers() -> list[list[str]]:
    """The layers in pyproject.toml, the highest first; the last one holds single files, which are not drawn."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("layers = [")[2].partition("\n]")[0]
    layers = [re.findall(r"autotune\.(\w+)", line) for line in re.findall(r'"([^"]+)"', contract)]
    return [layer for layer in layers if "errors" not in layer]


def _box(room: str, x: float, y: float, width: float) -> list[str]:
    middle, fill = x + width / 2, "#fde8d7" if room in WITH_TORCH else "#e3ecf7"
    weight = 600 if (ROOT / "autotune" / room).is_dir() else 500
    name = room if weight == 600 else f"{room}.py"
    return [
        f'  <rect x="{x:g}" y="{y}" width="{width:g}" height="{ROW}" rx="6" fill="{fill}" stroke="#7a8899"/>',
        f'  <text x="{middle:g}" y="{y + 21}" text-anchor="middle" font-size="15" font-weight="{weight}" '
        f'fill="#1d2733">{name}</text>',
        f'  <text x="{middle:g}" y="{y + 39}" text-anchor="middle">{WORDS[room]}</text>',
    ]


def _lane(lane: Lane, tops: dict[str, int]) -> list[str]:
    """A line from stop to stop, each with its number."""
    points = [(tops[room] + ROW // 2, what) for room, what in lane.stops]
    x = lane.x + 12
    lines = [
        f'  <text x="{lane.x}" y="{LEFT + 12}" font-size="14" fill="{lane.colour}">{lane.title}</text>',
        f'  <path d="M{x} {points[0][0]}V{points[-1][0]}" stroke="{lane.colour}" stroke-width="2"/>',
    ]
    for number, (y, what) in enumerate(points, start=1):
        lines += [
            f'  <circle cx="{x}" cy="{y}" r="11" fill="{lane.colour}"/>',
            f'  <text x="{x}" y="{y + 4}" text-anchor="middle" fill="#ffffff">{number}</text>',
            f'  <text x="{x + 18}" y="{y + 4}">{what}</text>',
        ]
    return lines
