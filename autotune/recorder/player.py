"""A player of a script: a config that takes turns with others in one process, with its own streams and figures."""

from __future__ import annotations

import math
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from .changes import Changes
from .effects import Effects, compiled_graphs
from .usage import Processors

if TYPE_CHECKING:
    from .source import Source
    from .stream import Stream

COMPILED_BATCHES = 3
"""Micro-batches after which compiled code is believed to be complete: for other sizes it may be compiled once more."""
FILLS = 2
"""A queue that was empty is full after so many times what its workers take for their share of it, as their first batch
took, start included. Who has trained for as long without waiting for a batch has a loader that is faster, and a queue
that is full as a rule: it need not be emptied first. Chosen: training and workers share the processors."""
WAITED_SHARE = 0.05
"""Of a lap: who waits so long for batches has emptied the loader's queue. Chosen above what handing one over takes."""


class Player:
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
        streams: What it draws from.
        stream: Of them, that of the loop's first loader; None before it has drawn, or in a script without a loader.
        position: Place in the stream of samples, in a loop without a loader.
        draws_ahead: Whether the script draws all batches of a step before it trains on one.
        is_open: Whether its first steps are taken.
        passed: Of its first steps, how often it came to the gate.
        start_seconds: From the request until the loop.
        loss: Of the last backward pass of its last lap.
        steps: Of the optimizers, since the lap began: when each began and ended.
    """

    def __init__(self, number: int, seat: dict[str, Any], loop: dict[str, Any]) -> None:
        self.number = number
        self.part, self.seed = seat["part"], seat["seed"]
        self.changes = Changes(seat["changes"])
        self.effects = Effects(self.changes, loop["device"])
        self.streams: dict[Source, Stream] = {}
        self.stream: Stream | None = None
        self.position = 0
        self.draws_ahead = loop["draws_ahead"] and not self.reads_only
        self.is_open = False
        self.passed = 0
        self.start_seconds = 0.0
        self.loss: float | None = None
        self.steps: list[tuple[float, float]] = []
        self._accumulation: int = max(1, loop["accumulation"])
        self._has_one_optimizer = loop["optimizers"] == 1
        self._opened = self._last_pass = perf_counter()
        self._pace = 0.0
        self._passes = self._accumulation if loop["loaders"] and not self.draws_ahead else 1  # of the gate, in a step
        compiled = seat["changes"].get("knobs", {}).get("compile_mode") is not None
        self._least_passes = max(self._passes + 1, COMPILED_BATCHES if compiled else 0)
        self._lap: dict[str, Any] = {}
        self._updates, self._update_seconds = 0, 0.0
        self._drawn_when_filled, self._waited = 0, False
        self._trained_since_restart = 0.0

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
        return {
            "pace": self._pace,
            "epoch_samples": self.stream.epoch_samples if self.stream is not None else None,
            "draws_ahead": self.draws_ahead,
            "loader_seconds": self._loader_seconds,
            "start_seconds": self.start_seconds,
            "opening_seconds": perf_counter() - self._opened,
            "opening_steps": self.passed / self._passes,
        }

    def restart(self, position: int) -> None:
        """Goes on at another place in the stream of samples."""
        self.release_workers()  # those of the loader that is dropped must end
        if self.stream is not None:
            self.stream.restart(position)
            self._drawn_when_filled, self._waited = self.stream.drawn, False
            self._trained_since_restart = 0.0
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
        self.steps.clear()
        stream = self.stream
        self._lap = {"lead": lead, "position": self.place, "processors": Processors(top), "graphs": compiled_graphs()}
        if stream is not None:
            self._lap |= {
                "drawn": stream.drawn,
                "samples": stream.samples,
                "starts": len(stream.starts),
                "start_seconds": stream.start_seconds,
                "wait_seconds": stream.wait_seconds,
            }
        self._lap["began"] = perf_counter()

    def finish(self, left_out: float) -> dict[str, Any]:
        """The lap has ended: what it took.

        Args:
            left_out: Seconds of evaluation in it.
        """
        lap, stream = self._lap, self.stream
        seconds: float = perf_counter() - lap["began"] - left_out
        taken = lap["processors"].taken()
        told: dict[str, Any] = {"samples": self.place - lap["position"], "starts": [], "start_seconds": 0.0}
        told |= {"compiled": compiled_graphs() > lap["graphs"], "left_out": left_out, "lead": lap["lead"]}
        if stream is not None:
            batches = stream.drawn - lap["drawn"]
            wait_seconds = stream.wait_seconds - lap["wait_seconds"]
            told |= {
                "samples": stream.samples - lap["samples"],
                "batches": batches,
                "starts": stream.starts[lap["starts"] :],
                "start_seconds": stream.start_seconds - lap["start_seconds"],
                "wait_seconds": wait_seconds,
            }
            if stream.drawn - self._drawn_when_filled > stream.workers and wait_seconds > WAITED_SHARE * seconds:
                self._waited = True
            self._trained_since_restart += seconds - told["start_seconds"]
            if self._has_one_optimizer:
                seconds += self._missing_updates(batches)
        return {"lap": told | {"seconds": max(seconds, 1e-9)}, "taken": taken, "drained": self.drained}

    def _missing_updates(self, batches: int) -> float:
        """What the optimizer's steps would take that belong to so many micro-batches, over what those seen took."""
        self._updates += len(self.steps)
        self._update_seconds += math.fsum(ended - began for began, ended in self.steps)
        usual = self._update_seconds / self._updates if self._updates else 0.0
        return usual * (batches / self._accumulation - len(self.steps))

    @property
    def drained(self) -> bool:
        """Whether what its loader had prepared in advance is gone."""
        stream = self.stream
        if stream is None or self._waited or stream.drawn - self._drawn_when_filled >= stream.queue:
            return True
        return self._trained_since_restart >= FILLS * stream.prefetched * self._loader_seconds

    @property
    def _loader_seconds(self) -> float:
        """What the slowest start of the loader took until its first batch."""
        starts = self.stream.starts if self.stream is not None else []
        return max((created + waited for created, waited, _ in starts), default=0.0)

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
