"""Endless batches, epoch after epoch, each with its number of samples; and the cost of waiting for them.

Samples are counted when they are collated, so a batch may have any structure.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter  # by name: the user's code may replace what `time` holds
from typing import Any

from torch.utils.data import DataLoader

from ..sandbox.system import signals
from ..torch_settings.naming import count_of, length_of
from .clock import Clock
from .protocol import Start

CACHED_BATCHES = 4
"""Batches that repeat where nothing is loaded. Not tuned."""


class NoBatchError(Exception):
    """The loader yields no batch."""


class Counted:
    """Collates samples to ``(count, batch)``; a class, so that spawned workers can unpickle it.

    Args:
        collate: The user's own.
        batched: Whether it gets a list of samples, or columns of a batch. Otherwise the data set yields batches.
    """

    def __init__(self, collate: Callable[[Any], Any], *, batched: bool = True) -> None:
        self._collate = collate
        self._batched = batched

    def __call__(self, samples: Any) -> tuple[int, Any]:
        """A batch and its number of samples."""
        batch = self._collate(samples)
        if not self._batched:
            return count_of(batch), batch
        return len(next(iter(samples.values())) if isinstance(samples, Mapping) else samples), batch


class Endless:
    """Yields ``(samples, batch)`` without end; a subclass makes the loader.

    Args:
        seed: Sets the order of samples.
        start: Position of the first batch in the stream of samples.
        ranks: Processes that train together. Each draws its share; the samples of all are counted.
        clock: Marks waits; the host's by default.
    """

    length: int | None = None  # that the sampler hands out in an epoch, to all ranks together; None if unknown
    epoch_samples: int | None = None  # of all ranks; None if unknown
    usual_samples = 1  # of an ordinary batch; the position advances by them where each rank has its own data

    def __init__(self, seed: int, start: int = 0, *, ranks: int = 1, clock: Clock | None = None) -> None:
        self.seed = seed  # each restart takes the next one: after as many restarts all players draw the same samples
        self.position = start  # samples passed, those of a dropped last batch included; comparable between configs
        self.ranks = ranks  # processes that train together
        self.clock = clock or Clock()
        self.running: Iterator[Any] | None = None  # torch's own iterator of this epoch; None before the first
        self.drawn = 0  # batches of this rank
        self.samples = self.last_samples = 0  # of all ranks: in total, and in the last batch
        self.waits: list[tuple[Any, Any]] = []  # marks around each wait for a batch, without the loader's starts
        self.found_empty = False  # the workers had no batch ready for one of these waits; the player resets it
        self.starts: list[Start] = []
        self.loader = self._made(start)
        self._cache: list[tuple[int, Any]] = []
        self._end_seconds, self._after_epoch = 0.0, False
        self._whole_from: int | None = None  # samples before this epoch, if it began with its first one

    def _made(self, start: int) -> DataLoader[Any]:
        """Makes a loader that begins at a position in the stream, and counts samples as it collates."""
        raise NotImplementedError

    def _iterated(self) -> Iterator[Any]:
        """An epoch of the loader, as torch iterates it."""
        return DataLoader.__iter__(self.loader)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        """The next batch, perhaps of the next epoch."""
        samples, batch = self._cache[self.drawn % len(self._cache)] if self._cache else self._drawn()
        self.drawn += 1
        self.last_samples = samples * self.ranks
        self.samples += self.last_samples
        # Ranks that share out their data themselves may end with batches of different sizes.
        alike = self.ranks == 1 or self.length is not None
        self.position += self.last_samples if alike else self.usual_samples * self.ranks
        return self.last_samples, batch

    def _drawn(self) -> tuple[int, Any]:
        if self.running is not None:
            was_empty = self._is_queue_empty()
            asked, mark = perf_counter(), self.clock.mark()
            item = next(self.running, None)
            if item is not None:
                self.waits.append((mark, self.clock.mark()))
                self.found_empty |= was_empty
                return item  # type: ignore[no-any-return]
            self._end_epoch(perf_counter() - asked)
        while (item := self._first_drawn()) is None:
            if self._whole_from is not None:
                once = " after its first epoch; an iterable dataset must begin again at each iter()"
                raise NoBatchError(f"the loader yields no batch{once if self._after_epoch else ''}")
            self._end_epoch(0.0)
        return item

    def _first_drawn(self) -> tuple[int, Any] | None:
        """Starts the loader, and returns its first batch, if there is one."""
        self._whole_from = None if self.length and self.position % self.length else self.samples
        began = perf_counter()
        self.running = self._iterated()
        created = perf_counter()
        item = next(self.running, None)
        # Starting workers and waiting for their first batch happens once an epoch: it is charged by the epoch.
        waited = perf_counter() - created
        self.starts.append(Start(self._end_seconds + created - began, waited, self._after_epoch))
        return item

    def _end_epoch(self, seconds: float) -> None:
        """Ends an epoch; noticing its end took some seconds."""
        if self.length:
            self.position += -self.position % self.length  # an incomplete last batch was dropped
        self._end_seconds, self._after_epoch = seconds, True

    def _first_batches(self) -> list[tuple[int, Any]]:
        """The batches that repeat where nothing is loaded; fewer if an epoch has no more."""
        self.running = self._iterated()
        # The end of an epoch would end its workers, and `of_loader` looks at them.
        most = min(CACHED_BATCHES, length_of(self.loader) or CACHED_BATCHES)
        if batches := list(itertools.islice(self.running, most)):
            return batches
        raise NoBatchError("the loader yields no batch")

    @property
    def is_between_epochs(self) -> bool:
        """Whether the next batch is known to be the first of an epoch."""
        if not self.length or self._cache:
            return False
        return -self.position % self.length < (self.last_samples if self.loader.drop_last else 1)

    def restart(self, position: int) -> None:
        """Drops what the workers have prepared, and continues elsewhere, even within an epoch, with an empty queue."""
        self.close()
        self.position = position
        self._end_seconds, self._after_epoch = 0.0, False
        if not self._cache:
            self.seed += 1
            self.loader = self._made(position)

    def close(self) -> None:
        """Ends the loader's workers, which must not be held."""
        self.running = self.loader._iterator = None

    def _is_queue_empty(self) -> bool:
        """Whether torch's workers have no batch ready; False where nothing shows it."""
        queue = getattr(self.running, "_data_queue", None)
        return queue is not None and queue.empty()

    @property
    def _workers(self) -> list[Any]:
        return getattr(self.running, "_workers", [])

    def hold_workers(self) -> None:
        """Stops the workers until `release_workers`, so that they read only while training is timed."""
        self._signal_workers("SIGSTOP")

    def release_workers(self) -> None:
        """Resumes the workers."""
        self._signal_workers("SIGCONT")

    def _signal_workers(self, name: str) -> None:
        for number in signals(name):
            for worker in self._workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, number)
