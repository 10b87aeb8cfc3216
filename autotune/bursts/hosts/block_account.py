"""Turns the laps of a player's process into blocks and measurements, charged with the costs of epochs' ends."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autotune.knobs import TrainConfig
from autotune.measuring import Block, Measurement, TelemetrySummary, merged
from autotune.timing.protocol import Lap, Start


class PlayedBlock(NamedTuple):
    """A block that a player has trained."""

    samples: int  # that count
    seconds: float  # without the cost of an epoch's end
    taken: float = 0.0  # share of the CPUs that other processes took meanwhile
    crossed: bool = False  # an epoch ended in it
    compiled: bool = False  # something was compiled in it


class Account:
    """Keeps the laps of one player, which together show what an epoch's end costs."""

    def __init__(self, config: TrainConfig) -> None:
        self.boundary_seconds = 0.0  # cost of an epoch's end, as far as known
        self._config = config
        self._laps: list[Lap] = []
        self._starts: list[Start] = []
        self._seen: list[TelemetrySummary] = []
        self._reported = 0
        self._ready_event: dict[str, Any] = {}
        self._epoch_samples: int | None = None

    def ready(self, event: dict[str, Any]) -> None:
        """Notes the gate's event after the player's first steps."""
        self._ready_event = event
        self._note(event)

    def block(self, event: dict[str, Any]) -> PlayedBlock:
        """The block of the gate's event about a lap."""
        self._note(event)
        lap = Lap(**event["lap"]).with_lead()
        seen = TelemetrySummary.model_validate({"seconds": lap.seconds, **event["seen"]})
        self._laps.append(dataclasses.replace(lap, joules=seen.energy_joules))
        self._seen.append(seen)
        if event["leads_in"]:  # no measurement includes this lap or earlier ones
            self._reported = len(self._laps)
        boundary = self._boundary
        self.boundary_seconds, block = boundary.seconds, boundary.block(lap)
        return PlayedBlock(block.samples, block.seconds, seen.taken_fraction, lap.starts > 0, lap.compiled)

    def _note(self, event: dict[str, Any]) -> None:
        self._starts += [Start(*start) for start in event["starts"]]  # the loader's
        self._epoch_samples = event["epoch_samples"]

    def measurement(self, figures: dict[str, Any]) -> Measurement | None:
        """A measurement of all laps since the last one, with the gate's other figures; None if there are no laps."""
        if self._reported == len(self._laps):
            return None
        first, self._reported = self._reported, len(self._laps)
        boundary, ready_event = self._boundary, self._ready_event
        blocks = tuple(map(boundary.block, self._laps[first:]))
        per_sample = sum(block.seconds for block in blocks) / max(1, sum(block.samples for block in blocks))
        opening = ready_event["opening_seconds"]
        compiling = opening - ready_event["opening_steps"] * per_sample * self._config.effective_batch
        telemetry = merged(self._seen[first:])
        of_telemetry = {name: figures[name] for name in figures.keys() & TelemetrySummary.model_fields.keys()}
        return Measurement(
            blocks=blocks,
            start_seconds=ready_event["start_seconds"],
            build_seconds=ready_event["build_seconds"],
            warmup_seconds=opening,
            compile_seconds=max(0.0, compiling) if self._config.is_compiled else None,
            epoch_boundary_seconds=boundary.seconds,
            epoch_samples=self._epoch_samples,
            telemetry=telemetry.model_copy(update=of_telemetry) if telemetry is not None else None,
            **{
                "device_memory_bytes": figures["host_memory_bytes"],  # on a CPU
                **{name: value for name, value in figures.items() if name not in of_telemetry},
            },
        )

    @property
    def _boundary(self) -> Boundary:
        return boundary_of(self._laps, self._starts, self._config, forks_workers=self._ready_event["forks_workers"])


MANY_BATCHES = 100
"""Without workers, the end of an epoch of this many batches costs at most what the loader's start takes, which is timed
itself: an incomplete last batch costs 0.5 % of the epoch on average. A round of a second knows the time of an epoch
beyond that of its samples to 2 % of the epoch. Only differences above zero are charged: that was 8 ms for a table whose
loader starts in 2 ms."""
LEAST_SHARE = 0.5
"""Share of its usual seconds that a lap keeps at least: the cost of its starts is only an estimate."""


@dataclass(frozen=True)
class Boundary:
    """The cost of an epoch's end: measured apart from the blocks, and charged as often as training meets it.

    Restarting the loader is most of it, but not all: workers that fill the queue compete with training for the
    processors, a fork makes the first writes slow, and the last batch may be incomplete. So wherever whole epochs were
    timed, the cost is the time that they took beyond that of their samples. Then the rate is that of whole epochs,
    however the blocks lie in them.
    """

    seconds: float  # beyond the time that its samples usually take
    ordinary_seconds: float  # part of the wait for a first batch that any batch has
    pace: float  # seconds a sample
    is_restart: bool  # a restart in the middle of an epoch costs as much
    # only a restart starts workers, because they persist. After a fork each page that training writes is copied first:
    # a step of 0.14 s took 0.7 s. No epoch's end does that.
    starts_workers: bool = False

    def block(self, lap: Lap) -> Block:
        """A lap as a block, without the cost of the loader's starts in it, which is charged by the epoch."""
        seconds = max(self._seconds_less_starts(lap), LEAST_SHARE * self.pace * lap.consumed, 1e-9)
        waited = lap.wait_seconds + lap.wait_beside_seconds + min(lap.start_seconds, lap.starts * self.ordinary_seconds)
        return Block(samples=lap.samples, seconds=seconds, data_wait_seconds=min(waited, seconds), joules=lap.joules)

    def _seconds_less_starts(self, lap: Lap) -> float:
        if self.is_restart:
            return lap.seconds - self.seconds * lap.starts
        if self.starts_workers and lap.restarts:
            return self.pace * lap.consumed
        restarting = max(0.0, lap.restart_seconds - lap.restarts * self.ordinary_seconds)
        return lap.seconds - self.seconds * (lap.starts - lap.restarts) - restarting


def boundary_of(
    laps: Sequence[Lap], starts: Sequence[Start], config: TrainConfig, *, forks_workers: bool = True
) -> Boundary:
    """The cost of an epoch's end, by all that was timed; a lap after a restart of the loader may be the first.

    Workers that are not forked import torch before their first batch.
    """
    laps = [lap for lap in laps if not lap.compiled] or laps
    # While the first batch is awaited, each worker prepares one: this much waiting is ordinary.
    waits = sum(lap.wait_seconds for lap in laps) / max(1, sum(lap.batches - lap.starts for lap in laps))
    ordinary = max(1, config.num_workers) * waits
    if starts and not config.num_workers and all(lap.batches <= lap.starts for lap in laps):
        ordinary = starts[-1].wait_seconds  # without workers, each batch is waited for alike, and no other was timed
    pace = statistics.median(
        (lap.seconds - max(0.0, lap.start_seconds - lap.starts * ordinary)) / lap.consumed for lap in laps
    )
    # Workers that do not persist start at a restart as they do at an epoch's end. Other costs are a restart's own:
    # starting workers that persist, or cold caches.
    start_again = config.num_workers > 0 and not config.persistent_workers
    crossing = [index for index, lap in enumerate(laps) if lap.starts and (start_again or not lap.restarts)]
    whole = (laps[first:last] for first, last in itertools.pairwise(crossing))  # epochs
    stretches = [stretch for stretch in whole if start_again or not any(lap.restarts for lap in stretch)]
    if not stretches and config.num_workers:
        queue = config.queue_batches
        stretches = [_until_full(laps[first:], queue) for first in crossing]
    batch_seconds = pace * sum(lap.consumed for lap in laps) / max(1, _batches(laps))
    cost = _start_seconds(starts, config, batch_seconds, forks_workers) - ordinary
    if stretches:
        beyond = statistics.median(_cost_of_start(stretch, pace) for stretch in stretches)
        fewest = min(_batches(stretch) / sum(lap.starts for lap in stretch) for stretch in stretches)
        is_start = not config.num_workers and fewest >= MANY_BATCHES
        cost = min(beyond, cost) if is_start else beyond
    return Boundary(max(0.0, cost), ordinary, pace, start_again, config.num_workers > 0 and not start_again)


def _cost_of_start(stretch: Sequence[Lap], pace: float) -> float:
    """Cost of each start in a stretch of laps, beyond the usual seconds of its samples.

    It is at most what `Boundary.block` takes out of the laps with a start. The rest stays in the other blocks: charged
    here too, it would count twice where the queue refills for longer than the lap in which an epoch ends.
    """
    beyond = sum(lap.seconds - lap.consumed * pace for lap in stretch)
    taken_out = sum(lap.seconds - LEAST_SHARE * lap.consumed * pace for lap in stretch if lap.starts)
    return min(beyond, taken_out) / sum(lap.starts for lap in stretch)


def _batches(laps: Sequence[Lap]) -> int:
    return sum(lap.batches for lap in laps)


def _until_full(laps: Sequence[Lap], queue: int) -> Sequence[Lap]:
    """The laps from a start of the loader until its queue could be full again."""
    filled = itertools.accumulate(lap.batches for lap in laps)
    return laps[: 1 + sum(batches < queue for batches in filled)]


def _start_seconds(starts: Sequence[Start], config: TrainConfig, batch_seconds: float, forks_workers: bool) -> float:
    """Seconds of a start of the loader at an epoch's end; else the comparable part of the burst's own start."""
    if seen := [start.seconds for start in starts if start.after_epoch]:
        return statistics.median(seen)
    if not starts:
        return 0.0
    last = starts[-1]
    if config.num_workers == 0:
        return last.create_seconds
    if not config.persistent_workers:
        return last.seconds
    # Workers that persist only fetch. None takes longer for a batch than training on one batch of each worker; a longer
    # wait was their own start.
    fetched = min(last.wait_seconds, config.num_workers * batch_seconds)
    return fetched if forks_workers else 0.0
