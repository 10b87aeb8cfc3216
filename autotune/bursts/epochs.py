"""What the end of an epoch costs: it is measured apart from the blocks, and charged as often as training meets it.

Starting the loader again is the most of it, but not all: workers that fill the queue compete with training for the
processors, a fork makes the first writes slow, the last batch may be incomplete. So wherever whole epochs were timed,
the cost is what they took longer than their samples usually do; then the rate is that of whole epochs, however the
blocks lie in them.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.knobs import TrainConfig
from autotune.measuring import Block

LEAST_SHARE = 0.5
"""Of the usual seconds, at least, that are left of a lap: what its starts cost is an estimate, and must not eat it."""


@dataclass(frozen=True)
class Start:
    """One start of the loader.

    Attributes:
        create_seconds: The end of the epoch before, and starting the workers.
        wait_seconds: Until the first batch.
        after_epoch: Whether an epoch had ended, as in training, rather than that the burst began or restarted it.
    """

    create_seconds: float
    wait_seconds: float
    after_epoch: bool


@dataclass(frozen=True)
class Lap:
    """A timed run of micro-batches, starts of the loader and all."""

    samples: int  # that taught the model something
    consumed: int  # all samples, those of skipped steps included
    seconds: float  # from synchronisation to synchronisation
    wait_seconds: float  # waiting for batches, starts of the loader left out
    batches: int  # drawn
    starts: int  # of the loader
    start_seconds: float  # what the starts took the host
    joules: float | None = None  # that the device took, where it tells

    @property
    def rate(self) -> float:
        """Samples per second without the starts: an optimistic figure."""
        return self.samples / max(self.seconds - self.start_seconds, 1e-9)


def charge(
    laps: Sequence[Lap], starts: Sequence[Start], config: TrainConfig, after_restart: Sequence[Lap] = ()
) -> tuple[list[Block], float]:
    """The laps as blocks within an epoch, and the seconds that an epoch's end costs.

    `after_restart` are the laps of the warm-up from the restart of the loader on.
    """
    # While the first batch is awaited each worker prepares one: so much ordinary waiting belongs to an epoch anyway.
    waits = sum(lap.wait_seconds for lap in laps) / max(1, sum(lap.batches - lap.starts for lap in laps))
    ordinary = max(1, config.num_workers) * waits
    usual = statistics.median(
        (lap.seconds - max(0.0, lap.start_seconds - lap.starts * ordinary)) / lap.consumed for lap in laps
    )
    crossing = [index for index, lap in enumerate(laps) if lap.starts]
    stretches = [laps[first:last] for first, last in itertools.pairwise(crossing)]  # whole epochs
    if not stretches and config.num_workers:
        queue = config.num_workers * (config.prefetch_factor or 0)
        # Workers that do not persist start at a restart as they do at an epoch's end.
        stretches = _starts(laps, queue) or _starts(() if config.persistent_workers else after_restart, queue)
    if stretches:
        # What each start in a stretch of laps cost over the usual seconds of its samples.
        cost = statistics.median(
            sum(lap.seconds - lap.consumed * usual for lap in stretch) / sum(lap.starts for lap in stretch)
            for stretch in stretches
        )
    else:
        cost = _start_seconds(starts, config) - ordinary
    cost = max(0.0, cost)
    return [_block(lap, cost, ordinary, usual) for lap in laps], cost


def _starts(laps: Sequence[Lap], queue: int) -> list[Sequence[Lap]]:
    """The laps from each start of the loader until its queue could be full again."""
    stretches = []
    for first, lap in enumerate(laps):
        if lap.starts:
            filled = itertools.accumulate(lap.batches for lap in laps[first:])
            stretches.append(laps[first : first + 1 + sum(batches < queue for batches in filled)])
    return stretches


def _block(lap: Lap, cost: float, ordinary: float, usual: float) -> Block:
    """A lap as a block, without what the starts of the loader in it cost: that is charged by the epoch."""
    seconds = max(lap.seconds - lap.starts * cost, LEAST_SHARE * usual * lap.consumed, 1e-9)
    waited = lap.wait_seconds + min(lap.start_seconds, lap.starts * ordinary)
    return Block(samples=lap.samples, seconds=seconds, data_wait_seconds=min(waited, seconds), joules=lap.joules)


def _start_seconds(starts: Sequence[Start], config: TrainConfig) -> float:
    """What a start of the loader took the host at an epoch's end; else what is alike of the burst's own start."""
    if seen := [start.create_seconds + start.wait_seconds for start in starts if start.after_epoch]:
        return statistics.median(seen)
    if not starts:
        return 0.0
    last = starts[-1]
    if config.num_workers == 0:
        return last.create_seconds
    if not config.persistent_workers:
        return last.create_seconds + last.wait_seconds
    # Workers that persist only fetch; but what is not forked imports torch before its first batch.
    return last.wait_seconds if multiprocessing.get_start_method() == "fork" else 0.0
