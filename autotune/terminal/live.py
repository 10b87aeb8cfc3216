"""Shows a training that is tuned while it runs, from its log: a display, or a line for each change."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import rich.live
from rich.console import Console, Group, RenderableType
from rich.table import Column, Table

from autotune.knobs.changes import words_of
from autotune.results.live import Candidate, Story, events_from
from autotune.results.summary import ratios
from autotune.terminal.console import plain_table
from autotune.units import format_bytes, format_seconds, rounded
from autotune.wording import as_text, labelled, or_dash, percent, ratio_text

PRINTED = ("pace", "decided", "over", "exited")
"""Events that print a line when the output is no terminal."""
READ_SECONDS, LAST_READS = 0.5, 10
"""The time between two reads of the log. Not tuned: a training reports a block about once a second."""


def follow(log: Path, console: Console) -> None:
    """Shows a training until it has ended.

    Raises:
        OSError: The log cannot be read.
    """
    story, offset = Story(), 0
    live = rich.live.Live(console=console, get_renderable=lambda: display(story), refresh_per_second=2.0)
    with live if console.is_terminal and log.exists() else contextlib.nullcontext():
        idle = 0
        while story.status is None:
            events, offset = events_from(log, offset)
            for event in events:
                story.add(event)
                if not console.is_terminal and event.get("event") in PRINTED:
                    console.print(as_text("; ".join(map(": ".join, _rows(story)))), soft_wrap=True)
            idle = 0 if events else idle + 1
            if idle and (has_gone(story) or (story.has_ended and idle > LAST_READS)):
                return
            time.sleep(READ_SECONDS if not events else 0.0)


def has_gone(story: Story) -> bool:
    """Whether the process that writes the log has ended too early; False on another machine, which cannot check."""
    host, process = story.watcher or (None, 0)
    return story.status is None and host == platform.node() and not psutil.pid_exists(process)


def display(story: Story) -> RenderableType:
    """The whole state."""
    grid = Table.grid(Column(no_wrap=True, style="bold"), Column(overflow="fold"), padding=(0, 2))
    for label, text in _rows(story):
        grid.add_row(label, as_text(text))
    table = plain_table("setting", "rate", "interval so far", "pairs", "")
    for name in {**story.offered, **story.candidates}:
        candidate = story.candidates.get(name, Candidate(name=name))
        state = candidate.verdict or ("is played" if name == story.playing else "")
        figures = or_dash(candidate.ratio, ratio_text), or_dash(candidate.interval, ratios), str(candidate.pairs)
        table.add_row(as_text(name), *figures, as_text(f"{state}: {candidate.reason}" if candidate.reason else state))
    kept = [labelled(f"your setting of {knob} stays", why, "dim") for knob, why in story.left.items()]
    return Group(grid, "", *([table] if table.row_count else []), *kept)


def _rows(story: Story) -> Iterator[tuple[str, str]]:
    yield "training", f"{story.command}, {format_seconds(story.seconds)}, {story.steps:,} steps{_ending(story)}"
    if story.pace is not None:
        yield "rate", _rate(story)
        yield "waiting", f"{percent(story.pace.wait_share)} of the time, for data"
        yield "memory", or_dash(story.pace.memory_bytes, format_bytes)
    yield "setting", words_of(story.won) or "yours"
    if story.over is None:
        yield "search", f"plays {story.playing}" if story.playing is not None else "plays nothing now"
    else:
        yield "search", f"has ended: {story.over.why}; it has cost {format_seconds(story.over.cost_seconds)}"
    if story.result is not None:
        yield "result", story.result


def _ending(story: Story) -> str:
    if story.status is not None:
        return f", ended with exit status {story.status}"
    if story.has_ended:
        return ", ended"
    return "; autotune has ended before it" if has_gone(story) else ""


def _rate(story: Story) -> str:
    """The rate now, beside the rate of the first steps and the claimed gain."""
    now = story.pace.steps_per_second if story.pace is not None else 0.0
    text = f"{rounded(now)} steps/s"
    if story.facts is not None:
        text += f", {ratio_text(now * story.facts.step_seconds)} that of the first steps"
    return text + (f" (claimed: {ratio_text(story.gained[0])})" if story.gained is not None else "")
