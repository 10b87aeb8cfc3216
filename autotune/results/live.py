"""The log of a training that is tuned while it runs, and the state that its events describe."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shlex
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from autotune.hardware import Hardware
from autotune.knobs import KNOBS, LiveFacts, Scalar, live_candidates
from autotune.knobs.changes import in_words, words_of
from autotune.knobs.knob import ByLeave
from autotune.measuring import Interval
from autotune.measuring.records import MOST_BLOCKS
from autotune.results.summary import ratios
from autotune.sandbox.system import Held, lock
from autotune.secrets import masked_data
from autotune.stored import Figure, Seconds, Share, Stored, Whole
from autotune.units import format_seconds
from autotune.wording import or_dash, ratio_text

ENDING = ".live.jsonl"
Knobs = dict[str, Scalar]
MOVED = "workers draw the random numbers of reading: augmentation has the same distribution, and other numbers"
"""This holds even if workers lose: the script's own generators did not make the draws that workers made."""
MAY_MOVE = (
    "where workers draw random numbers, what they draw depends on their number: augmentation has the same "
    "distribution, and other numbers"
)
"""For workers of the script's own, which this process does not see draw."""


def moving(facts: LiveFacts) -> str | None:
    """What another number of workers means for augmentation; None if nothing draws random numbers."""
    if facts.moves_augmentation:
        return MOVED
    return MAY_MOVE if facts.baseline.num_workers else None


class Candidate(Stored):
    """A candidate, and how it compares with the best setting before it."""

    name: str
    knobs: Knobs = Field(default_factory=dict)
    verdict: Literal["won", "lost", "failed", "too costly"] | None = None
    reason: str = ""
    ratio: Figure | None = None
    low: Figure | None = None
    high: Figure | None = None
    pairs: Whole = Field(default=0, description="pairs of blocks")
    seconds: Seconds = Field(default=0.0, description="from its first block to its last")

    @property
    def interval(self) -> Interval | None:
        """The interval of the ratio; None before it has two ends."""
        return None if self.low is None or self.high is None or self.low > self.high else Interval(self.low, self.high)


class Played(Stored):
    """A timed block of steps of one setting."""

    knobs: Knobs
    timed_steps: Whole
    timed_seconds: Seconds
    waited_seconds: Seconds


class Pace(Stored):
    """The speed of the training now."""

    steps_per_second: Figure
    wait_share: Share = 0.0
    memory_bytes: Whole | None = None


class Over(Stored):
    """The end of the search."""

    won: Knobs = Field(default_factory=dict)
    gained: Figure = 1.0
    cost_seconds: Seconds = 0.0
    saved_seconds: Seconds = 0.0
    paid: bool = False
    complete: bool = Field(default=False, description="all candidates are decided")
    why: str = ""
    left: dict[str, str] = Field(default_factory=dict)


class Clock(Stored):
    """How far the training has come at an event."""

    t: Seconds = 0.0
    steps: Whole = 0


@dataclass
class Story:
    """The state of a training, by its events so far."""

    command: str = ""
    watcher: tuple[str, int] | None = None  # host and process that keep the log
    facts: LiveFacts | None = None  # None before the first steps
    offered: dict[str, Knobs] = field(default_factory=dict)  # of each candidate, in the order of their tries
    left: dict[str, str] = field(default_factory=dict)  # knobs that keep the script's own value, with the reasons
    candidates: dict[str, Candidate] = field(default_factory=dict)  # that have played; the last one decided comes last
    playing: str | None = None  # the candidate that plays now
    blocks: deque[Played] = field(default_factory=lambda: deque(maxlen=MOST_BLOCKS))  # the latest, of races
    warmup_seconds: float = 0.0  # of training before the first block
    pace: Pace | None = None
    over: Over | None = None  # None while the search goes on
    result: str | None = None  # its file; None where none was written
    status: int | None = None  # exit status; None while the command runs, and of a training that has no command
    has_ended: bool = False  # the training, not the search alone
    seconds: float = 0.0  # since training began
    searched_seconds: float = 0.0  # the same at the last pair or decision
    steps: int = 0
    _first_played: dict[str, float] = field(default_factory=dict)

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds one event; skips anything else, since a log may come from anywhere."""
        with contextlib.suppress(ValidationError, KeyError, TypeError, ValueError, AttributeError):
            now = Clock.model_validate(event)
            self.seconds, self.steps = max(self.seconds, now.t), max(self.steps, now.steps)
            self._take(event["event"], event)

    def _take(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "started":
            self.command, self.watcher = str(event["command"]), (str(event["host"]), int(event["pid"]))
        elif kind == "began":
            self.facts = LiveFacts.model_validate(event)
        elif kind == "planned":
            self.offered, self.left = dict(event["candidates"]), dict(event["left"])
        elif kind == "playing":
            self.playing = str(event["name"])
            self._first_played.setdefault(self.playing, self.seconds)
        elif kind == "paused":
            self.playing = None
        elif kind in {"pair", "decided"}:
            name = event["name"]
            seconds = self.seconds - self._first_played.get(name, self.seconds)
            candidate = Candidate.model_validate({"knobs": self.offered.get(name, {}), **event, "seconds": seconds})
            self.candidates.pop(name, None)
            self.candidates[name], self.searched_seconds = candidate, self.seconds
            self.over = None  # it goes on where a winner has failed
        elif kind == "block":
            self.warmup_seconds = self.warmup_seconds or self.seconds
            played = Played.model_validate(event)
            if not played.knobs or played.knobs != self.won:  # a winner's later blocks belong to others' races
                self.blocks.append(played)
        elif kind == "pace":
            self.pace = Pace.model_validate(event)
        elif kind == "over":
            self.over, self.playing, self.searched_seconds = Over.model_validate(event), None, self.seconds
            self.left = {**self.left, **self.over.left}
        elif kind == "written":
            self.result = str(event["path"])
        elif kind in {"ended", "exited"}:
            self.status = int(event["status"]) if kind == "exited" else self.status
            self.has_ended, self.playing = True, None

    @property
    def is_complete(self) -> bool:
        """Whether the search has decided all candidates."""
        return self.over is not None and self.over.complete

    @property
    def progress(self) -> str:
        """How many candidates are decided."""
        decided = sum(one.verdict is not None for one in self.candidates.values())
        return f"settings decided: {decided} of {len(self.offered)}"

    @property
    def winners(self) -> tuple[Candidate, ...]:
        """The candidates that were kept, each compared with those before it; none where the search reverted all."""
        return () if self._is_reverted else self._kept_for_a_time

    @property
    def given_up(self) -> str | None:
        """What was kept for a time, and is reverted; None where nothing is."""
        names = [each.name for each in self._kept_for_a_time if self._is_reverted]
        return f"{'; '.join(names)} was faster, but is given up" if names else None

    @property
    def _kept_for_a_time(self) -> tuple[Candidate, ...]:
        return tuple(each for each in self.candidates.values() if each.verdict == "won")

    @property
    def _is_reverted(self) -> bool:
        return self.over is not None and not self.over.won

    @property
    def won(self) -> Knobs:
        """The knobs that training has now and that differ from the script's own."""
        return {knob: value for winner in self.winners for knob, value in winner.knobs.items()}

    @property
    def gained(self) -> tuple[float, Interval] | None:
        """The rate over that of the script's own setting, from the pairs of all winners; None without winners.

        The ends are the products of the winners' ends, which makes the interval wider than a joint one.
        """
        gains = [(winner.ratio, winner.interval) for winner in self.winners if winner.ratio and winner.interval]
        if not gains:
            return None
        low, high = (math.prod(interval[end] for _, interval in gains) for end in (0, 1))
        return math.prod(ratio for ratio, _ in gains), Interval(low, high)


def log_path(path: Path) -> Path:
    """The log of a training beside its result; a path without a name, such as ``.``, stays."""
    return path if path.name.endswith(ENDING) or not path.name else path.with_suffix(ENDING)


def events_from(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The events of a log after an offset in bytes, and the offset of the next ones, before a half-written line.

    Raises:
        OSError: The log cannot be read.
    """
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read()
    events, whole = [], text[: text.rfind(b"\n") + 1]
    for line in whole.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict)], offset + len(whole)


class LiveLog:
    """Keeps the events of a training, in a file and as a story, and reports the notable ones."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.story = Story()
        self._say = say
        self._file: Held | None = None
        self._path = Path()
        self._failures: set[str] = set()  # that were reported

    def __del__(self) -> None:
        """Frees the log for another training of this process."""
        if self._file is not None:
            self._file.close()

    def open(self, result: Path, command: str) -> bool:
        """Opens the file, beside a result; where that fails, there is no log.

        Returns:
            False where another running training keeps its log there.
        """
        path = log_path(result)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = Held(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666))
            if not lock(file.number):
                file.close()
                return False
            os.ftruncate(file.number, 0)
            self._file, self._path = file, path
        except OSError as error:
            self._say(f"there is no log, because {path} cannot be written: {error.strerror}")
        self.add({"event": "started", "command": command, "host": platform.node(), "pid": os.getpid()})
        return True

    def begin(self, event: Mapping[str, Any], hardware: Hardware) -> list[dict[str, Any]]:
        """Plans candidates for a training that has begun; returns them as the recorder's messages hold them."""
        facts = LiveFacts.model_validate(event)
        self.add(event)
        plan = live_candidates(facts, hardware)
        words = [in_words(config, plan.baseline) for config in plan.configs]
        self.add(
            {
                "event": "planned",
                "candidates": {candidate["name"]: candidate["knobs"] for candidate in words},
                "left": plan.left,
            }
        )
        knobs = dict.fromkeys(knob for candidate in words for knob in candidate["knobs"])
        follow = "" if self._file is None else f"; follow it with 'autotune watch {shlex.quote(str(self._path))}'"
        settings = "1 setting of {} is" if len(words) == 1 else f"{len(words)} settings of {{}} are"
        tried = f"{settings.format(', '.join(knobs))} tried while it trains{follow}"
        self._say(tried if words else "there is nothing to try")
        if (moves := moving(facts)) and any(candidate["knobs"].get("num_workers") for candidate in words):
            self._say(moves)
        for knob in facts.allowed:
            if knob in knobs and isinstance(leave := KNOBS[knob].while_training, ByLeave):
                self._say(f"{knob} is tried by your leave: {leave.changes}")
        self._say_left(plan.left)
        return words

    def _say_left(self, reasons: Mapping[str, str]) -> None:
        for why in dict.fromkeys(reasons.values()):
            self._say(f"your setting of {', '.join(knob for knob in reasons if reasons[knob] == why)} stays: {why}")

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds an event to the story and to the file; a failed write ends the log."""
        before = self.story.left
        self.story.add(event)
        if self._file is not None:
            try:
                self._file.write(json.dumps(masked_data(event), default=str).encode() + b"\n")
            except OSError as error:
                self._say(f"the log cannot be written any more, training goes on: {error.strerror}")
                file, self._file = self._file, None
                file.close()
        if event["event"] == "decided" and event["verdict"] == "won":
            winner = self.story.candidates[event["name"]]
            spread = f"{or_dash(winner.interval, ratios)}, {winner.pairs} pairs of blocks"
            self._say(f"{winner.name} is faster: {or_dash(winner.ratio, ratio_text)} ({spread})")
        if event["event"] == "decided" and event["verdict"] == "failed" and event["reason"] not in self._failures:
            self._failures.add(event["reason"])
            self._say(f"{event['name']} is left out: {event['reason']}")
        if event["event"] == "over" and self.story.over is not None:
            self._say_left({knob: why for knob, why in self.story.left.items() if knob not in before})
            self._say(self._last_line(self.story.over))

    def say_ended(self, without_winner: str) -> None:
        """Reports what is known where the training ends before its search; otherwise the search's last line has."""
        if self.story.over is None:
            state = f"{words_of(self.story.won)} is faster" if self.story.won else without_winner
            self._say(f"the training ended before the search did; so far, {state}")

    def _last_line(self, over: Over) -> str:
        """The line at the end of the search: winners, gain, cost, and when the cost is paid back."""
        cost, gained = f"the search has cost {format_seconds(over.cost_seconds)}", self.story.gained
        elsewhere = "'autotune run' also tries the allocator and other settings that need a new process"
        if not self.story.offered:
            return f"nothing was tried: {over.why}"
        if (given_up := self.story.given_up) is not None:
            return f"{given_up} ({over.why}): training continues with your own setting; {cost}"
        early = "" if over.complete else f"the search has ended early ({over.why}; {self.story.progress}): "
        if gained is None and early:
            return f"{early}so far, no setting is faster than yours; {cost}"
        if gained is None:
            return f"no setting is faster than yours ({over.why}); {cost}; {elsewhere}"
        paid = f"has paid for itself: so far it has saved {format_seconds(over.saved_seconds)}"
        if not over.paid:
            seconds = (over.cost_seconds - over.saved_seconds) / max(1e-9, over.gained - 1)
            paid = f"pays for itself after {format_seconds(seconds)} more"
        gain = f"{words_of(over.won)}: {ratio_text(gained[0])} ({ratios(gained[1])})"
        return f"{early}{gain}; {cost} and {paid}; {elsewhere}"
