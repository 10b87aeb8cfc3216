"""A training that is tuned while it runs, as its log tells: one display, or a line for each thing that happens."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import rich.live
from rich.console import Console, Group, RenderableType
from rich.table import Column, Table

from autotune.knobs import format_scalar
from autotune.results.live import Candidate, Story, events_from
from autotune.results.summary import ratios
from autotune.terminal.console import plain_table
from autotune.units import format_bytes, format_rate, format_seconds
from autotune.wording import as_text, labelled, or_dash, percent, ratio_text

READ_SECONDS = 0.5
"""Between two looks at the log. Chosen: a training tells of a block every second or so."""


def follow(log: Path, console: Console) -> None:
    """Shows a training until it has ended.

    Raises:
        OSError: The log cannot be read.
    """
    story = Story()
    if not console.is_terminal:
        for event in _events(log, story):
            for line in lines_of(event, story):
                console.print(as_text(line), soft_wrap=True)
        return
    events_from(log, 0)  # before the display: the log may not be there
    with rich.live.Live(console=console, get_renderable=lambda: display(story), refresh_per_second=2.0):
        for _ in _events(log, story):
            pass


def _events(log: Path, story: Story) -> Iterator[Mapping[str, Any]]:
    """Each event, once the story knows of it, until the training has ended or nobody is left to tell of it."""
    offset = 0
    while True:
        events, offset = events_from(log, offset)
        for event in events:
            story.add(event)
            yield event
        if story.status is not None or (not events and has_gone(story)):
            return
        time.sleep(READ_SECONDS)


def has_gone(story: Story) -> bool:
    """Whether the process that kept the log has ended without a last word; not known of another machine."""
    if story.watcher is None or story.status is not None:
        return False
    host, process = story.watcher
    return host == platform.node() and not psutil.pid_exists(process)


def display(story: Story) -> RenderableType:
    """All that is known now."""
    grid = Table.grid(Column(no_wrap=True, style="bold"), Column(overflow="fold"), padding=(0, 2))
    for label, text in _rows(story):
        grid.add_row(label, as_text(text))
    table = plain_table("setting", "rate", "interval so far", "pairs", "")
    for name in dict.fromkeys((*story.offered, *story.candidates)):
        one = story.candidates.get(name, Candidate(name=name))
        state = str(one.verdict or ("is played" if name == story.playing else ""))
        state += f": {one.reason}" if one.reason else ""
        spread = ratios(one.interval) if one.interval is not None else "–"
        table.add_row(as_text(name), or_dash(one.ratio, ratio_text), spread, str(one.pairs), as_text(state))
    kept = [labelled(f"your own {knob}", why, "dim") for knob, why in story.left.items()]
    return Group(grid, "", *([table] if table.row_count else []), *kept)


def _rows(story: Story) -> Iterator[tuple[str, str]]:
    yield "training", f"{story.command}, {format_seconds(story.seconds)}, {story.steps:,} steps{_ending(story)}"
    if story.pace is not None:
        yield "rate", _rate(story)
        yield "waiting", f"{percent(story.pace.wait_share)} of the time, for data"
        yield "memory", or_dash(story.pace.memory_bytes, format_bytes)
    if story.over is not None:
        yield "search", f"has ended: {story.over.why}; it has cost {format_seconds(story.over.cost_seconds)}"
    else:
        yield "search", f"plays {story.playing}" if story.playing is not None else "plays nothing now"
    yield "setting", ", ".join(f"{knob}={format_scalar(value)}" for knob, value in story.won.items()) or "your own"
    if story.result is not None:
        yield "result", story.result


def _ending(story: Story) -> str:
    if story.status is not None:
        return f", ended with exit status {story.status}"
    return "; autotune has gone, and nothing more is told" if has_gone(story) else ""


def _rate(story: Story) -> str:
    """The rate now, beside that of the first steps and what has been claimed to be gained over it."""
    now = story.pace.samples_per_second if story.pace is not None else 0.0
    text, usual, gained = format_rate(now), story.usual_rate, story.gained
    if usual:
        text += f", {ratio_text(now / usual)} of the first steps'"
    return text + (f" (claimed: {ratio_text(gained[0])})" if gained is not None else "")


def lines_of(event: Mapping[str, Any], story: Story) -> Iterator[str]:
    """An event in plain lines, where it is worth one."""
    kind, when = event.get("event"), format_seconds(story.seconds)
    if kind == "pace" and story.pace is not None:
        waiting = f"waiting {percent(story.pace.wait_share)}"
        yield f"{when}: {_rate(story)}, {waiting}, memory {or_dash(story.pace.memory_bytes, format_bytes)}"
    elif kind == "decided" and (one := story.candidates.get(str(event.get("name")))) is not None:
        spread = f" ({ratios(one.interval)})" if one.interval is not None else ""
        yield f"{when}: {one.name} {one.verdict}: {or_dash(one.ratio, ratio_text)}{spread}, {one.pairs} pairs"
    elif kind == "over" and story.over is not None:
        yield f"{when}: the search has ended: {story.over.why}; kept: {dict(_rows(story))['setting']}"
    elif kind == "exited":
        yield f"{when}: {story.command}{_ending(story)}"
