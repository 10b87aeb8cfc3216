"""What a training has told that is tuned while it runs: the log beside the result, and what it says so far."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from autotune.knobs import LiveFacts, Scalar
from autotune.measuring import Interval
from autotune.stored import Figure, Seconds, Share, Stored, Whole

ENDING = ".live.jsonl"
Knobs = dict[str, Scalar]
Known = Annotated[
    Figure | None, BeforeValidator(lambda value: None if isinstance(value, float) and math.isinf(value) else value)
]
"""A figure; None where it has no bound yet."""


class Candidate(Stored):
    """A setting that is played, and how it compares with the best one before it."""

    name: str
    knobs: Knobs = Field(default_factory=dict)
    verdict: Literal["won", "lost", "failed", "too costly"] | None = None
    reason: str | None = None
    ratio: Known = None
    low: Known = None
    high: Known = None
    pairs: Whole = Field(default=0, description="of blocks")
    seconds: Seconds = Field(default=0.0, description="from its first block to its last")

    @property
    def interval(self) -> Interval | None:
        """Of the ratio; None before it has two ends."""
        return None if self.low is None or self.high is None or self.low > self.high else Interval(self.low, self.high)


class Pace(Stored):
    """How fast it trains now."""

    samples_per_second: Figure
    wait_share: Share = 0.0
    memory_bytes: Whole | None = None
    setting: str | None = None


class Over(Stored):
    """How the search has ended."""

    won: Knobs = Field(default_factory=dict)
    gained: Figure = 1.0
    cost_seconds: Seconds = 0.0
    saved_seconds: Seconds = 0.0
    paid: bool = False
    why: str = ""
    left: dict[str, str] = Field(default_factory=dict)


class Story:
    """What a training has told so far.

    Attributes:
        command: What trains.
        watcher: Host and process that keeps the log.
        facts: What it has told of itself; None before its first steps.
        offered: The knobs of each candidate, in the order in which they are tried.
        left: Knobs that keep the script's own value, each with the reason.
        candidates: What is known of each that was played.
        playing: What is played now.
        pace: How fast it trains.
        over: How the search has ended; None while it goes on.
        result: The result file; None where none was written.
        status: The exit status of the command; None while it runs.
        seconds: Since training began.
        searched_seconds: The same, when something was last found out.
        steps: That it has taken.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self.command = ""
        self.watcher: tuple[str, int] | None = None
        self.facts: LiveFacts | None = None
        self.offered: dict[str, Knobs] = {}
        self.left: dict[str, str] = {}
        self.candidates: dict[str, Candidate] = {}
        self.playing: str | None = None
        self.pace: Pace | None = None
        self.over: Over | None = None
        self.result: str | None = None
        self.status: int | None = None
        self.seconds, self.searched_seconds, self.steps = 0.0, 0.0, 0
        self._first_played: dict[str, float] = {}
        for event in events:
            self.add(event)

    def add(self, event: Mapping[str, Any]) -> None:
        """Takes in one event; what is none is passed over, since a log may come from anywhere."""
        with contextlib.suppress(ValidationError, KeyError, TypeError, ValueError):
            self.seconds = max(self.seconds, float(event.get("t", 0.0)))
            self.steps = max(self.steps, int(event.get("steps", 0)))
            getattr(self, f"_on_{event['event']}", lambda _: None)(event)

    def _on_started(self, event: Mapping[str, Any]) -> None:
        self.command, self.watcher = str(event["command"]), (str(event["host"]), int(event["pid"]))

    def _on_began(self, event: Mapping[str, Any]) -> None:
        self.facts = LiveFacts.model_validate(event)

    def _on_planned(self, event: Mapping[str, Any]) -> None:
        self.offered, self.left = dict(event["candidates"]), dict(event["left"])

    def _on_playing(self, event: Mapping[str, Any]) -> None:
        self.playing = str(event["name"])
        self._first_played.setdefault(self.playing, self.seconds)

    def _on_pair(self, event: Mapping[str, Any]) -> None:
        name = event["name"]
        seconds = self.seconds - self._first_played.get(name, self.seconds)
        told = {"knobs": self.offered.get(name, {}), **event, "seconds": seconds}
        self.candidates.pop(name, None)  # in the order in which they are decided
        self.candidates[name] = Candidate.model_validate(told)
        self.searched_seconds = self.seconds

    _on_decided = _on_pair

    def _on_pace(self, event: Mapping[str, Any]) -> None:
        self.pace = Pace.model_validate(event)

    def _on_over(self, event: Mapping[str, Any]) -> None:
        self.over, self.playing, self.searched_seconds = Over.model_validate(event), None, self.seconds
        self.left = {**self.left, **self.over.left}

    def _on_written(self, event: Mapping[str, Any]) -> None:
        self.result = str(event["path"])

    def _on_exited(self, event: Mapping[str, Any]) -> None:
        self.status, self.playing = int(event["status"]), None

    @property
    def winners(self) -> tuple[Candidate, ...]:
        """The settings that were kept, each over those before it."""
        return tuple(one for one in self.candidates.values() if one.verdict == "won")

    @property
    def won(self) -> Knobs:
        """The knobs that training has now, where they are not the script's own."""
        if self.over is not None:
            return self.over.won
        return {knob: value for winner in self.winners for knob, value in winner.knobs.items()}

    @property
    def gained(self) -> tuple[float, Interval] | None:
        """The rate over that of the script's own setting, by the pairs of all winners; None where nothing has won.

        The ends are the products of the winners' ends, which is wider than what all of them say together.
        """
        known = [(one.ratio, one.interval, one.pairs) for one in self.winners]
        if not known:
            return None
        ratio = math.prod(ratio or 1.0 for ratio, _, _ in known)
        ends = [interval or Interval(1.0, 1.0) for _, interval, _ in known]
        return ratio, Interval(math.prod(one.low for one in ends), math.prod(one.high for one in ends))

    @property
    def usual_rate(self) -> float | None:
        """Samples per second of the script's own setting, by its first steps."""
        loader = self.facts.loader if self.facts is not None else None
        if self.facts is None or loader is None or not loader.batch_size or not self.facts.step_seconds:
            return None
        return loader.batch_size / self.facts.step_seconds


def log_path(path: Path) -> Path:
    """The log of a training beside its result."""
    return path if path.name.endswith(ENDING) else path.with_suffix(ENDING)


def events_from(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The events of a log behind an offset in bytes, and where the next ones begin: a line half written is left.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    return list(_decoded(whole)), offset + len(whole)


def _decoded(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(event := json.loads(line), dict):
                yield event
