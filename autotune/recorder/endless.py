"""Batches without end, epoch after epoch, each with its number of samples; and what waiting for them costs.

Samples are counted where they are collated, so that a batch may have any structure.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter  # by name: the user's code may replace what `time` holds
from typing import TYPE_CHECKING, Any

from .clock import Clock
from .naming import count_of, length_of
from .protocol import Start

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

CACHED_BATCHES = 4
"""Batches that come over and over where nothing is loaded. Chosen; no trial of other numbers is known."""


class NoBatchError(Exception):
    """The loader yields nothing."""


class Counted:
    """Collates samples to ``(how many, batch)``; a class, so that workers that are spawned can unpickle it.

    Args:
        collate: The user's own.
        batched: Whether it gets a list of samples, or columns where a data set fetches by the batch. Otherwise the data
            set yields batches itself.
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
        seed: Seed of the order of samples.
        start: Place in the stream of samples where the first batch lies.
        ranks: Processes that train together. Each draws its share, and the samples of all are counted.
        clock: Marks waits; the host's clock by default.

    Attributes:
        seed: Seed of the order of samples. Each restart takes the next one: after the same number of restarts all
            players draw the same samples.
        position: Samples of the stream that were passed, including those of an incomplete last batch that was dropped.
            Two configs that read the same stream have this place in common.
        ranks: Processes that train together.
        clock: Marks waits.
        loader: The loader that is drawn from.
        running: Torch's own iterator of this epoch; None before the first.
        drawn: Batches that this rank has drawn.
        samples: Samples that all ranks have drawn.
        last_samples: Samples of the last batch, of all ranks.
        length: Samples that the sampler hands out in an epoch, to all ranks together; None where that is not known.
        epoch_samples: Samples of an epoch, of all ranks; None where that is not known.
        usual_samples: Samples of an ordinary batch. The place moves on by them where each rank has its own data.
        waits: Marks of the clock before and after each wait for a batch, without the starts of the loader.
        starts: Each start of the loader.
    """

    length: int | None = None
    epoch_samples: int | None = None
    usual_samples = 1

    def __init__(self, seed: int, start: int = 0, *, ranks: int = 1, clock: Clock | None = None) -> None:
        self.seed = seed
        self.position = start
        self.ranks = ranks
        self.clock = clock or Clock()
        self.running: Iterator[Any] | None = None
        self.drawn = self.samples = self.last_samples = 0
        self.waits: list[tuple[Any, Any]] = []
        self.starts: list[Start] = []
        self.loader = self._made(start)
        self._cache: list[tuple[int, Any]] = []
        self._end_seconds, self._after_epoch = 0.0, False
        self._whole_from: int | None = None  # samples before this epoch, if it began with its first one

    def _made(self, start: int) -> DataLoader[Any]:
        """A loader that begins at a place in the stream of samples, and counts them as it collates."""
        raise NotImplementedError

    def _iterated(self) -> Iterator[Any]:
        """An epoch of the loader, as torch iterates it."""
        from torch.utils.data import DataLoader

        return DataLoader.__iter__(self.loader)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        """The next batch, of the next epoch perhaps."""
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
            asked, mark = perf_counter(), self.clock.mark()
            item = next(self.running, None)
            if item is not None:
                self.waits.append((mark, self.clock.mark()))
                return item  # type: ignore[no-any-return]
            self._end_epoch(perf_counter() - asked)
        while (item := self._first_drawn()) is None:
            if self._whole_from is not None:
                once = " after its first epoch; an iterable dataset must begin again at each iter()"
                raise NoBatchError(f"the loader yields no batch{once if self._after_epoch else ''}")
            self._end_epoch(0.0)
        return item

    def _first_drawn(self) -> tuple[int, Any] | None:
        """The first batch of a start of the loader, if there is one."""
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
        """An epoch has ended; it took some seconds to see that."""
        if self.length:
            self.position += -self.position % self.length  # an incomplete last batch was dropped
        self._end_seconds, self._after_epoch = seconds, True

    def _first_batches(self) -> list[tuple[int, Any]]:
        """The batches that come over and over where nothing is loaded; fewer, where an epoch has no more."""
        self.running = self._iterated()
        # The end of an epoch would end its workers, and `of_loader` looks at them.
        most = min(CACHED_BATCHES, length_of(self.loader) or CACHED_BATCHES)
        if batches := list(itertools.islice(self.running, most)):
            return batches
        raise NoBatchError("the loader yields no batch")

    @property
    def is_between_epochs(self) -> bool:
        """Whether the next batch is the first of an epoch, as far as that is known."""
        if not self.length or self._cache:
            return False
        return -self.position % self.length < (self.last_samples if self.loader.drop_last else 1)

    def restart(self, position: int) -> None:
        """Drops what the workers have prepared, and goes on at another place, with an empty queue.

        Args:
            position: Place in the stream of samples, in the middle of an epoch perhaps.
        """
        self.close()
        self.position = position
        self._end_seconds, self._after_epoch = 0.0, False
        if not self._cache:
            self.seed += 1
            self.loader = self._made(position)

    def close(self) -> None:
        """Ends the loader's workers, which must not be held."""
        self.running = self.loader._iterator = None

    @property
    def _workers(self) -> list[Any]:
        return getattr(self.running, "_workers", [])

    def hold_workers(self) -> None:
        """Stops the workers until `release_workers`, so that nothing is read while nothing is timed."""
        self._signal_workers("SIGSTOP")

    def release_workers(self) -> None:
        """Lets the workers go on."""
        self._signal_workers("SIGCONT")

    def _signal_workers(self, name: str) -> None:
        if hasattr(signal, name):  # Windows has neither
            for worker in self._workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, getattr(signal, name))
