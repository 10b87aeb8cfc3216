"""A player of a script: a config that takes turns with others in one process, with its own streams and figures."""

from __future__ import annotations

from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from .changes import Changes
from .clock import Clock
from .effects import Effects
from .laps import COMPILED_BATCHES, Laps
from .usage import Looks, Processors

if TYPE_CHECKING:
    from .source import Source
    from .stream import Stream


class Player(Laps):
    """What is known of one config in this process.

    Args:
        number: By which the parent calls it.
        seat: What it trains: ``changes``, the ``part`` of training, and the ``seed`` of the order of samples.
        loop: What a look at the script found.

    Attributes:
        number: By which the parent calls it.
        part: Of training: ``loader``, whose batches nobody trains on; ``compute``, on a few batches that stay; any
            other trains as it is.
        seed: Of the order of samples.
        changes: Its config's.
        effects: Tells whether they came into effect.
        looks: At what the process holds.
        streams: What it draws from.
        stream: Of them, that of the loop's first loader; None before it has drawn, or in a script without a loader.
        position: Place in the stream of samples, in a loop without a loader.
        draws_ahead: Whether the script draws all batches of a step before it trains on one.
        is_open: Whether its first steps are taken.
        passed: Of its first steps, how often it came to the gate.
        start_seconds: From the request until the loop.
        loss: Of the last backward pass of its last lap.
    """

    def __init__(self, number: int, seat: dict[str, Any], loop: dict[str, Any]) -> None:
        super().__init__(Clock(), max(1, loop["accumulation"]))
        self.number = number
        self.part, self.seed = seat["part"], seat["seed"]
        self.changes = Changes(seat["changes"])
        self.effects = Effects(self.changes, loop["device"])
        self.looks = Looks()
        self.streams: dict[Source, Stream] = {}
        self.stream: Stream | None = None
        self.position = 0
        self.draws_ahead = loop["draws_ahead"] and not self.reads_only
        self.is_open = False
        self.passed = 0
        self.start_seconds = 0.0
        self.loss: float | None = None
        self._has_one_optimizer = loop["optimizers"] == 1
        self._opened = self._last_pass = perf_counter()
        self._pace = 0.0
        self._passes = self._accumulation if loop["loaders"] and not self.draws_ahead else 1  # of the gate, in a step
        compiled = seat["changes"].get("knobs", {}).get("compile_mode") is not None
        self._least_passes = max(self._passes + 1, COMPILED_BATCHES if compiled else 0)

    @property
    def reads_only(self) -> bool:
        """Whether nobody trains on its batches."""
        return bool(self.part == "loader")

    @property
    def place(self) -> int:
        """In the stream of samples."""
        return self.position if self.stream is None else self.stream.position

    def pass_first(self, samples: int, left_out: float) -> bool:
        """It comes to the gate on its first steps; returns whether they are taken.

        Args:
            samples: Since the last time.
            left_out: Seconds of evaluation since then.
        """
        now = perf_counter()
        self.passed += 1 if samples else 0
        seconds, self._last_pass = now - self._last_pass - left_out, now
        self._opened += left_out  # as if that had come before
        self._pace = max(seconds, 1e-9) / max(1, samples)
        return self.passed >= self._least_passes

    def ready(self) -> dict[str, Any]:
        """What its first steps say."""
        self.is_open = True
        self._usual_update()  # the first lap clears the steps so far
        return {
            "pace": self._pace,
            "epoch_samples": self.stream.epoch_samples if self.stream is not None else None,
            "draws_ahead": self.draws_ahead,
            "loader_seconds": self.loader_seconds,
            "start_seconds": self.start_seconds,
            "opening_seconds": perf_counter() - self._opened,
            "opening_steps": self.passed / self._passes,
        }

    def restart(self, position: int) -> None:
        """Goes on at another place in the stream of samples."""
        self.release_workers()  # those of the loader that is dropped must end
        super().restart(position)
        self.position = position

    @property
    def starts_loader(self) -> bool:
        """Whether its loader starts with the next batch, which must be timed."""
        return self.stream is not None and self.stream.is_between_epochs

    def begin(self, top: int | None, *, lead: int) -> None:
        """A lap begins.

        Args:
            top: The process that all ranks hang below; None: there is one.
            lead: Samples that were trained just before, untimed.
        """
        self._lead, self._lap_place, self._processors = lead, self.place, Processors(top)
        self.begin_lap()

    def finish(self, left_out: float) -> dict[str, Any]:
        """The lap has ended: what it took.

        Args:
            left_out: Seconds of evaluation in it.
        """
        self._began += left_out  # as if that had come before
        lap = {"samples": self.place - self._lap_place, "left_out": left_out, "lead": self._lead, **self.end_lap()}
        return {"lap": lap, "taken": self._processors.taken(), "drained": self.drained}

    def _missing_updates(self, micro_batches: int) -> float:
        return super()._missing_updates(micro_batches) if self._has_one_optimizer else 0.0

    def hold_workers(self) -> None:
        """Stops the workers of its loaders until `release_workers`."""
        for stream in self.streams.values():
            stream.hold_workers()

    def release_workers(self) -> None:
        """Lets the workers of its loaders go on."""
        for stream in self.streams.values():
            stream.release_workers()

    def close(self) -> None:
        """Ends its loaders, and what looks at its effects."""
        self.effects.close()
        self.release_workers()
        for stream in self.streams.values():
            stream.close()
