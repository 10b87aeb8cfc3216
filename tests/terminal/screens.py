"""Terminals and live displays for tests, and what is to be seen on them."""

from __future__ import annotations

import io
import re

from rich.console import Console

from autotune.terminal.progress import Live
from tests.factories import make_burst, make_pair


class Clock:
    """Seconds that go forward when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """As `time.monotonic` is called."""
        return self.now


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        """As asked by rich."""
        return True


def on_screen(live: Live) -> str:
    """What the live display shows now, words apart by single spaces, the bar left out."""
    return " ".join(re.sub("[━╸╺]", " ", drawn(live, 100)).split())


def drawn(live: Live, width: int) -> str:
    """The live display on a terminal of so many columns."""
    console = Console(file=io.StringIO(), width=width)
    console.print(live.render())
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def live_at(clock: Clock, seconds: float | None = None) -> Live:
    """A live display that is not drawn by itself."""
    return Live(Console(file=Terminal()), clock, seconds=seconds)


def live_in_a_duet() -> Live:
    """A search of five minutes, of which 100 s are over, in its second duet."""
    clock = Clock()
    live = live_at(clock, 300.0)
    for stage, seconds in (
        ("importing", 4),
        ("checking the workload", 6),
        ("baseline", 10),
        ("one knob at a time", 80),
    ):
        live.stage(stage)
        clock.now += seconds
    baseline, best = make_burst(1000), make_burst(1500, precision="bf16")
    candidate = make_burst(1650, precision="bf16", num_workers=2, prefetch_factor=4)
    live.burst(baseline, None, baseline, 200.0)
    live.burst(best, make_pair(baseline, 1.48, 0.2), best, 200.0)
    live.duet(candidate.point, make_pair(best, 1.12, 0.15))
    return live
