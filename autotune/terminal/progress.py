"""Live progress of tuning: what is being tried, what is best so far, and how much time remains.

The search reports to a `Progress` and is independent of terminals. On a terminal the report is a small display that
refreshes by itself; in a pipe or a log it is one line per burst. Closing the terminal does not end the tuning:
`lasting` makes a console that drops what it can no longer write.
"""

from __future__ import annotations

import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

import rich.live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from autotune.measuring import SAMPLES_PER_SECOND, Burst, Objective, Outcome, Pair, Point, Progress
from autotune.results.summary import ratio_with_interval
from autotune.terminal.console import lasting
from autotune.units import format_seconds
from autotune.wording import as_text, labelled, percent, ratio_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from typing_extensions import Self


REASON_CHARACTERS = 160


class Latest(Progress):
    """Counts bursts and decisions, and keeps what the latest events say.

    Ratios are to the baseline's latest score. Until a baseline is known, it is the first burst's point.

    Args:
        objective: Selects the score that is shown.

    Attributes:
        now: The stage.
        decided: Number of decisions.
        outcomes: Numbers of bursts.
        best: The best burst in words, as `last` is the last; both may be empty.
        playing: The current duet's candidate, and its pair so far.
    """

    def __init__(self, objective: Objective = SAMPLES_PER_SECOND) -> None:
        self.now = "starting"
        self.decided = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.best = self.last = ""
        self.playing: tuple[Point, Pair] | None = None
        self._objective = objective
        self._baseline_score: float | None = None

    def stage(self, name: str) -> None:
        """A stage begins, in which nothing is played yet."""
        self.now, self.playing = name, None

    def burst(
        self,
        burst: Burst,
        pair: Pair | None,
        best: Burst | None,
        remaining_seconds: float,  # noqa: ARG002
        gain: float | None = None,
    ) -> None:
        """A burst has ended, and with it the duet."""
        self.last, self.playing = self._add(burst, pair), None
        if best is not None and best.ok:
            self.best = self.describe(best, self.figure(best, gain))

    def duet(self, candidate: Point, pair: Pair) -> None:
        """A turn of a duet has ended."""
        self.playing = candidate, pair

    def text(self) -> str:
        """The stage, the number of decisions, the running duet, the best so far, the last burst: a sentence."""
        duet = self.playing  # another thread may end it meanwhile
        playing = f"comparing: {ratio_with_interval(duet[1])} for {_changes(*duet)}" if duet is not None else ""
        decided = f"{self.decided} decided" if self.decided else ""
        best, last = f"best so far: {self.best}" * bool(self.best), f"last: {self.last}" * bool(self.last)
        return " | ".join(filter(None, (self.now, decided, playing, best, last)))

    def _add(self, burst: Burst, pair: Pair | None) -> str:
        """Counts a burst, and describes it beside the incumbent in its duet."""
        self.baseline = self.baseline or burst.point
        is_baseline = burst.point == self.baseline
        self.decided += pair is not None or not (burst.ok or is_baseline)
        self.outcomes[burst.outcome] += 1
        if is_baseline and burst.ok and burst.measurement is not None:
            # In a round it comes first: the others are compared with its latest score, not with its first.
            self._baseline_score = self._objective.score(burst.measurement)
        if pair is None or not burst.ok:
            return self.describe(burst)
        partner = "the baseline" if pair.partner == self.baseline else "the best so far"
        # Not its own rate: on a shared machine, that compares with nothing but its partner's in the same seconds.
        return self.describe(burst, f"{ratio_with_interval(pair)} over {partner}")

    def describe(self, burst: Burst, figure: str = "") -> str:
        """One burst: `figure` or its score, or how it failed; and the knobs that it changes."""
        changes = burst.point.changes_text(self.baseline or burst.point) or "baseline"
        if burst.ok:
            return f"{figure or self.figure(burst)}, {changes}"
        reason = " ".join((burst.reason or "").split())
        if len(reason) > REASON_CHARACTERS:
            reason = reason[: REASON_CHARACTERS - 1] + "…"
        return f"{burst.outcome.value}, {changes}" + (f": {reason}" if reason else "")

    def figure(self, burst: Burst, gain: float | None = None) -> str:
        """A score, half its 95 % interval, and its gain over the baseline: ``1,230 samples/s ±0.8 % (1.42×)``.

        Args:
            burst: The burst.
            gain: 1 is not shown; None is the score over the baseline's latest one.
        """
        measurement = burst.measurement
        score = self._objective.score(measurement) if measurement is not None else None
        if measurement is None or score is None:
            return f"no {self._objective.name}"
        text, interval = self._objective.format(score), self._objective.interval(measurement)
        if len(measurement.blocks) > 1 and score > 0:
            text += f" ±{percent((interval.high - interval.low) / 2 / score, 1)}"
        if gain is None:
            gain = score / self._baseline_score if self._baseline_score else 1.0
        return f"{text} ({ratio_text(gain)})" if gain != 1 else text


class Lines(Latest):
    """One plain line per burst, for pipes and logs; `objective` selects the score that a line shows."""

    def __init__(self, console: Console, objective: Objective = SAMPLES_PER_SECOND) -> None:
        super().__init__(objective)
        self._console = lasting(console)

    def stage(self, name: str) -> None:
        """Prints the stage."""
        super().stage(name)
        self._print(f"{name} …")

    def burst(
        self, burst: Burst, pair: Pair | None, best: Burst | None, remaining_seconds: float, gain: float | None = None
    ) -> None:
        """Prints stage, outcome or rate, changed knobs, the best so far, and the time left."""
        super().burst(burst, pair, best, remaining_seconds, gain)
        parts = [f"{self.now}: {self.last}"]
        if best is not None and best != burst and best.ok:
            parts.append(f"best {self.figure(best, gain)}")
        self._print(" | ".join([*parts, f"{_ticking(remaining_seconds)} left"]))

    def note(self, text: str) -> None:
        """Prints the note."""
        self._print(f"note: {text}")

    def _print(self, line: str) -> None:
        # soft_wrap: a log has no width at which to break lines.
        self._console.print(as_text(line), soft_wrap=True)


class Live(Latest):
    """A display that is redrawn in place, on a terminal or in a notebook's widget; notes are printed above it.

    Args:
        console: The terminal, or the notebook's cell.
        clock: Monotonic seconds.
        objective: Selects the score that is shown.
        seconds: The rest of the budget; None if it is not known before the first burst.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        objective: Objective = SAMPLES_PER_SECOND,
        seconds: float | None = None,
    ) -> None:
        super().__init__(objective)
        self._console = lasting(console)
        self._clock = clock
        self._stages: dict[str, float] = {}  # the seconds of each, up to the start of the current one
        self._since = clock()
        self._seconds = seconds
        self._deadline = self._since + seconds if seconds is not None else None
        # Twice a second: more would only take time from the measurement. stdout is not redirected: with --json another
        # program reads it.
        self._live = rich.live.Live(
            console=self._console, get_renderable=self.render, refresh_per_second=2.0, redirect_stdout=False
        )

    def __enter__(self) -> Self:
        """Starts drawing, in a separate thread."""
        self._since = self._clock()
        if self._seconds is not None:
            self._deadline = self._since + self._seconds
        self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Clears the display, since the result follows; after an error its last state stays."""
        self._live.transient = kind is None
        self._live.stop()

    def stage(self, name: str) -> None:
        """Shows the stage, and counts its time from now on."""
        self._stages, self._since = self._seconds_by_stage(), self._clock()
        super().stage(name)
        self._live.refresh()

    def burst(
        self, burst: Burst, pair: Pair | None, best: Burst | None, remaining_seconds: float, gain: float | None = None
    ) -> None:
        """Counts decisions, and shows the burst, the best so far, and the budget."""
        super().burst(burst, pair, best, remaining_seconds, gain)
        self._deadline = self._clock() + remaining_seconds
        self._live.refresh()

    def note(self, text: str) -> None:
        """Prints the note above the display."""
        self._console.print(labelled("note", text))

    def render(self) -> RenderableType:
        """The current display."""
        stages = self._seconds_by_stage()
        grid = Table.grid(Column(style="dim", no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
        grid.add_row("stage", _stages_text(self.now, stages))
        counts = self.outcomes.most_common()
        failures = "".join(f", {count} {outcome.value}" for outcome, count in counts if outcome is not Outcome.OK)
        grid.add_row("decided", Text.assemble(f"{self.decided}", (failures, "yellow")))
        if self.best:
            grid.add_row("best", as_text(self.best, style="green"))
        if self.last:
            grid.add_row("last", as_text(self.last))
        if (duet := self.playing) is not None:  # drawn with the next event: at once would take time from the duet
            for label, shown in zip(("playing", ""), _duet_rows(*duet), strict=True):
                grid.add_row(label, shown)
        if self._deadline is None:
            grid.add_row("time", f"{_ticking(sum(stages.values()))} elapsed")
        else:
            spent, remaining = sum(stages.values()), self._deadline - self._clock()
            bar = ProgressBar(spent + max(0.0, remaining), spent)
            beside = Table.grid(Column(), Column(no_wrap=True), padding=(0, 2, 0, 0))
            beside.add_row(bar, f"{_ticking(remaining)} left")
            grid.add_row("time", beside)
        return grid

    def _seconds_by_stage(self) -> dict[str, float]:
        """The time that each stage has taken, including the current one."""
        return {**self._stages, self.now: self._stages.get(self.now, 0.0) + self._clock() - self._since}


def make_progress(
    console: Console, *, quiet: bool, objective: Objective = SAMPLES_PER_SECOND, seconds: float | None = None
) -> Progress:
    """Progress that fits the console: nothing, a live display, or plain lines.

    `FORCE_COLOR` may force colours on a pipe, but a cursor cannot move there: only a real terminal, or a notebook with
    widgets, gets the live display. `objective` and `seconds` are those of `Live`.
    """
    if quiet:
        return Progress()
    has_widgets = console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
    if has_widgets or (console.is_interactive and _is_tty(console.file)):
        return Live(console, objective=objective, seconds=seconds)
    return Lines(console, objective)


def _stages_text(stage: str, stages: dict[str, float]) -> Text:
    """The current stage, and earlier ones with their times, as far as they fit on the line."""
    before = [f"{name} {_ticking(stages[name])}" for name in reversed(stages) if name != stage and stages[name] >= 1]
    text = Text.assemble(as_text(stage, "bold"), *(as_text(f"  {earlier}", "dim") for earlier in before))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _duet_rows(candidate: Point, pair: Pair) -> Iterator[RenderableType]:
    """A candidate's changes to the incumbent, and their ratio so far: green or red if its interval excludes 1."""
    changes = as_text(_changes(candidate, pair))
    changes.no_wrap, changes.overflow = True, "ellipsis"
    yield changes
    style = "green" if pair.ci95.low > 1 else "red" if pair.ci95.high < 1 else "yellow"
    yield as_text(ratio_with_interval(pair), style)


def _changes(candidate: Point, pair: Pair) -> str:
    return candidate.changes_text(pair.partner) or "the same config"


def _ticking(seconds: float) -> str:
    """A duration in whole seconds, which suffice for a display."""
    return format_seconds(float(max(0, round(seconds)))) if seconds >= 1 else "0 s"


def _is_tty(stream: IO[str]) -> bool:
    """Whether a stream writes to a terminal; False for a closed one."""
    try:
        return stream.isatty()
    except ValueError:
        return False
