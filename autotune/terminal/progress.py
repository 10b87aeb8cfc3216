"""Live progress of tuning: what is being tried, what is best so far, and how long it still takes.

The search reports to a `Progress` and knows nothing of terminals. On a terminal the report is a small
display that ticks by itself; in a pipe or a log it is one line a burst. A terminal that goes away must not
take a tuning of hours with it: `lasting` makes a console whose lost output is dropped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING

import rich.live
from rich.table import Table
from rich.text import Text

from autotune.measuring import SAMPLES_PER_SECOND, Burst, Measurement, Objective, Outcome, Point
from autotune.terminal.streams import lasting
from autotune.units import format_seconds
from autotune.wording import as_text, percent, ratio_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

REASON_CHARACTERS = 160
REFRESHES_PER_SECOND = 2.0
"""Seconds tick; more would only take time from what is being measured beside it."""


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Quiet:
        """Begins; there is nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends; there is nothing to clean up."""

    def stage(self, name: str) -> None:
        """Shows nothing."""

    def burst(self, burst: Burst, best: Burst | None, remaining_seconds: float) -> None:
        """Shows nothing."""

    def note(self, text: str) -> None:
        """Shows nothing."""


class Lines:
    """One plain line a burst, for pipes and logs.

    Args:
        console: Where the lines go.
        objective: What is shown of a burst.
    """

    def __init__(self, console: Console, objective: Objective = SAMPLES_PER_SECOND) -> None:
        self._console = lasting(console)
        self._tally = _Tally(objective)

    def __enter__(self) -> Lines:
        """Begins; there is nothing to prepare."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends; every line is already written."""

    def stage(self, name: str) -> None:
        """Prints the stage."""
        self._tally.stage = name
        self._print(f"{name} …")

    def burst(self, burst: Burst, best: Burst | None, remaining_seconds: float) -> None:
        """Prints number, stage, outcome or rate, changed knobs, the best so far, and the time left."""
        tally = self._tally
        tally.add(burst, best)
        parts = [f"#{tally.bursts} {tally.stage}: {tally.describe(burst)}"]
        if best is not None and best != burst and best.measurement is not None:
            parts.append(f"best {tally.score_text(best.measurement)}{tally.gain(best)}")
        parts.append(f"{_ticking(remaining_seconds)} left")
        self._print(" | ".join(parts))

    def note(self, text: str) -> None:
        """Prints the note."""
        self._print(f"note: {text}")

    def _print(self, line: str) -> None:
        # soft_wrap: a log's lines are not cut at a width that nobody looks at.
        self._console.print(as_text(line), soft_wrap=True)


class Live:
    """A display on the terminal that is redrawn in place; notes scroll by above it.

    Args:
        console: A console on a terminal.
        clock: Seconds that only go forward; tests bring their own.
        objective: What is shown of a burst.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        objective: Objective = SAMPLES_PER_SECOND,
    ) -> None:
        self._console = lasting(console)
        self._clock = clock
        self._tally = _Tally(objective)
        self._last: Text | None = None
        self._started = clock()
        self._deadline: float | None = None
        # stdout is left alone: with --json it belongs to another program.
        self._live = rich.live.Live(
            console=self._console,
            get_renderable=self.render,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
        )

    def __enter__(self) -> Live:
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
        self._tally.add(burst, best)
        self._last = as_text(f"#{self._tally.bursts} {self._tally.describe(burst)}")
        self._deadline = self._clock() + remaining_seconds
        self._live.refresh()

    def note(self, text: str) -> None:
        """Prints the note above the display."""
        self._console.print(Text.assemble(("note: ", "yellow"), as_text(text)))

    def render(self) -> RenderableType:
        """The display as it stands now."""
        tally, now = self._tally, self._clock()
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("stage", as_text(tally.stage, style="bold"))
        grid.add_row("bursts", _counts_text(tally))
        if tally.best_line is not None:
            grid.add_row("best", as_text(tally.best_line, style="green"))
        if self._last is not None:
            grid.add_row("last", self._last)
        clock = f"{_ticking(now - self._started)} gone"
        if self._deadline is not None:
            clock += f", {_ticking(self._deadline - now)} left"
        grid.add_row("time", clock)
        return grid


def make_progress(console: Console, *, quiet: bool, objective: Objective = SAMPLES_PER_SECOND) -> Quiet | Live | Lines:
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
        self.objective = objective
        self.stage = "starting"
        self.bursts = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.best_line: str | None = None
        self._baseline_score: float | None = None
        self._baseline_point: Point | None = None

    def add(self, burst: Burst, best: Burst | None) -> None:
        """Counts one more burst."""
        self.bursts += 1
        self.outcomes[burst.outcome] += 1
        # Until one has gone well, knobs are compared with the first that was tried: the baseline again.
        if self._baseline_score is None and (burst.ok or self._baseline_point is None):
            self._baseline_point, self._baseline_score = burst.point, self._score(burst)
        if best is not None and best.measurement is not None:
            self.best_line = f"{self.score_text(best.measurement)}{self.gain(best)}, {self.changes(best.point)}"

    def describe(self, burst: Burst) -> str:
        """One burst: its score or how it failed, and what it changed."""
        changes = self.changes(burst.point)
        if burst.ok and burst.measurement is not None:
            return f"{self.score_text(burst.measurement)}{self.gain(burst)}, {changes}"
        reason = " ".join((burst.reason or "").split())
        if len(reason) > REASON_CHARACTERS:
            reason = reason[: REASON_CHARACTERS - 1] + "…"
        return f"{burst.outcome.value}, {changes}" + (f": {reason}" if reason else "")

    def gain(self, burst: Burst) -> str:
        """The score over the baseline's: `` (1.42×)``; the spread stands beside the score."""
        score = self._score(burst)
        if not self._baseline_score or score is None or score == self._baseline_score:
            return ""
        return f" ({ratio_text(score / self._baseline_score)})"

    def score_text(self, measurement: Measurement) -> str:
        """A score with half the width of its 95 % interval: ``1,230 samples/s ±0.8 %``."""
        score = self.objective.score(measurement)
        if score is None:
            return f"no {self.objective.name}"
        text, interval = self.objective.format(score), self.objective.interval(measurement)
        if len(measurement.blocks) > 1 and score > 0:
            text += f" ±{percent((interval.high - interval.low) / 2 / score, 1)}"
        return text if measurement.steady else f"{text} (not steady)"

    def _score(self, burst: Burst) -> float | None:
        return self.objective.score(burst.measurement) if burst.ok and burst.measurement is not None else None

    def changes(self, point: Point) -> str:
        """The knobs in which a point differs from the baseline's."""
        if self._baseline_point is None:
            return "baseline"
        return point.changes_text(self._baseline_point) or "baseline"


def _counts_text(tally: _Tally) -> Text:
    """``12 done, 3 oom, 1 crashed``."""
    text = Text(f"{tally.bursts} done")
    for outcome, count in tally.outcomes.most_common():
        if outcome is not Outcome.OK:
            text.append(f", {count} {outcome.value}", style="yellow")
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
