"""Live progress of tuning: what is being tried, what is best so far, and how long it still takes.

The search reports to a `Progress` and knows nothing of terminals. On a terminal the report is a small
display that ticks by itself; in a pipe or a log it is one line per burst. A terminal that goes away does not end
the tuning: `lasting` makes a console that drops what it can no longer write.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING

import rich.live
from rich.table import Column, Table
from rich.text import Text

from autotune.measuring import SAMPLES_PER_SECOND, Burst, Objective, Outcome, Point
from autotune.terminal.streams import lasting
from autotune.units import format_seconds
from autotune.wording import as_text, labelled, percent, ratio_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from typing_extensions import Self

REASON_CHARACTERS = 160


class Quiet:
    """Shows nothing; what shows something says so instead."""

    def __enter__(self) -> Self:
        """Begins."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends."""

    def stage(self, name: str) -> None:
        """Shows nothing."""

    def burst(self, burst: Burst, best: Burst | None, remaining_seconds: float) -> None:
        """Shows nothing."""

    def note(self, text: str) -> None:
        """Shows nothing."""


class Lines(Quiet):
    """One plain line per burst, for pipes and logs; `objective` is what they show of it."""

    def __init__(self, console: Console, objective: Objective = SAMPLES_PER_SECOND) -> None:
        self._console = lasting(console)
        self._tally = _Tally(objective)

    def stage(self, name: str) -> None:
        """Prints the stage."""
        self._tally.stage = name
        self._print(f"{name} …")

    def burst(self, burst: Burst, best: Burst | None, remaining_seconds: float) -> None:
        """Prints number, stage, outcome or rate, changed knobs, the best so far, and the time left."""
        tally = self._tally
        tally.add(burst)
        parts = [f"#{tally.bursts} {tally.stage}: {tally.describe(burst)}"]
        if best is not None and best != burst and best.ok:
            parts.append(f"best {tally.figure(best)}")
        parts.append(f"{_ticking(remaining_seconds)} left")
        self._print(" | ".join(parts))

    def note(self, text: str) -> None:
        """Prints the note."""
        self._print(f"note: {text}")

    def _print(self, line: str) -> None:
        # soft_wrap: a log's lines are not cut at a width that nobody looks at.
        self._console.print(as_text(line), soft_wrap=True)


class Live(Quiet):
    """A display on the terminal that is redrawn in place; notes scroll by above it."""

    def __init__(
        self, console: Console, clock: Callable[[], float] = time.monotonic, objective: Objective = SAMPLES_PER_SECOND
    ) -> None:
        self._console = lasting(console)
        self._clock = clock
        self._tally = _Tally(objective)
        self._last = self._best = ""
        self._started = clock()
        self._deadline: float | None = None
        # Twice a second: more would only take time from what is being measured. stdout is left alone: with --json it
        # belongs to another program.
        self._live = rich.live.Live(
            console=self._console, get_renderable=self.render, refresh_per_second=2.0, redirect_stdout=False
        )

    def __enter__(self) -> Self:
        """Begins to draw, in a thread of its own."""
        self._started = self._clock()
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clears the display, for the result says it better; after an error its last state stays."""
        self._live.transient = kind is None
        self._live.stop()

    def stage(self, name: str) -> None:
        """Shows the stage."""
        self._tally.stage = name
        self._live.refresh()

    def burst(self, burst: Burst, best: Burst | None, remaining_seconds: float) -> None:
        """Counts the burst, and shows it, the best so far, and the budget."""
        tally = self._tally
        tally.add(burst)
        self._last = f"#{tally.bursts} {tally.describe(burst)}"
        if best is not None and best.ok:
            self._best = tally.describe(best)
        self._deadline = self._clock() + remaining_seconds
        self._live.refresh()

    def note(self, text: str) -> None:
        """Prints the note above the display."""
        self._console.print(labelled("note", text))

    def render(self) -> RenderableType:
        """The display as it stands now."""
        tally, now = self._tally, self._clock()
        grid = Table.grid(Column(style="dim", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
        grid.add_row("stage", as_text(tally.stage, style="bold"))
        counts = tally.outcomes.most_common()
        failures = "".join(f", {count} {outcome.value}" for outcome, count in counts if outcome is not Outcome.OK)
        grid.add_row("bursts", Text.assemble(f"{tally.bursts} done", (failures, "yellow")))
        if self._best:
            grid.add_row("best", as_text(self._best, style="green"))
        if self._last:
            grid.add_row("last", as_text(self._last))
        clock = f"{_ticking(now - self._started)} elapsed"
        if self._deadline is not None:
            clock += f", {_ticking(self._deadline - now)} left"
        grid.add_row("time", clock)
        return grid


def make_progress(console: Console, *, quiet: bool, objective: Objective = SAMPLES_PER_SECOND) -> Quiet:
    """The progress that fits where it is shown: nothing, a live display, or plain lines.

    Colours may be forced on a pipe (`FORCE_COLOR`), but a cursor cannot be moved there: only a real
    terminal gets the live display.
    """
    if quiet:
        return Quiet()
    if console.is_interactive and _is_tty(console.file):
        return Live(console, objective=objective)
    return Lines(console, objective)


class _Tally:
    """What has happened so far; the first burst that went well is the baseline of all ratios."""

    def __init__(self, objective: Objective) -> None:
        self.stage = "starting"
        self.bursts = 0
        self.outcomes: Counter[Outcome] = Counter()
        self._objective = objective
        self._baseline_score: float | None = None
        self._baseline_point: Point | None = None

    def add(self, burst: Burst) -> None:
        self.bursts += 1
        self.outcomes[burst.outcome] += 1
        # Until one has gone well, knobs are compared with the first that was tried: the baseline again.
        if self._baseline_score is None and (burst.ok or self._baseline_point is None):
            self._baseline_point = burst.point
            if burst.ok and burst.measurement is not None:
                self._baseline_score = self._objective.score(burst.measurement)

    def describe(self, burst: Burst) -> str:
        """One burst: its score or how it failed, and what it changed."""
        changes = "baseline"
        if self._baseline_point is not None:
            changes = burst.point.changes_text(self._baseline_point) or changes
        if burst.ok:
            return f"{self.figure(burst)}, {changes}"
        reason = " ".join((burst.reason or "").split())
        if len(reason) > REASON_CHARACTERS:
            reason = reason[: REASON_CHARACTERS - 1] + "…"
        return f"{burst.outcome.value}, {changes}" + (f": {reason}" if reason else "")

    def figure(self, burst: Burst) -> str:
        """A score with half its 95 % interval, and over the baseline's: ``1,230 samples/s ±0.8 % (1.42×)``."""
        measurement = burst.measurement
        score = self._objective.score(measurement) if measurement is not None else None
        if measurement is None or score is None:
            return f"no {self._objective.name}"
        text, interval = self._objective.format(score), self._objective.interval(measurement)
        if len(measurement.blocks) > 1 and score > 0:
            text += f" ±{percent((interval.high - interval.low) / 2 / score, 1)}"
        if not measurement.steady:
            text += " (not steady)"
        if self._baseline_score and score != self._baseline_score:
            text += f" ({ratio_text(score / self._baseline_score)})"
        return text


def _ticking(seconds: float) -> str:
    """Whole seconds, since a clock on a screen needs no more."""
    return format_seconds(float(max(0, round(seconds)))) if seconds >= 1 else "0 s"


def _is_tty(stream: IO[str]) -> bool:
    """Whether a stream ends at a terminal; a closed one does not."""
    try:
        return stream.isatty()
    except ValueError:
        return False
