"""Batches without end, epoch after epoch, each with its number of samples; and what waiting for them cost.

Samples are counted where they are collated, so that a batch may have any structure.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from multiprocessing import connection
from time import perf_counter  # by name: the user's module may replace what `time` holds
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, Subset

from autotune.bursts.clock import Clock, HostClock, clock_of
from autotune.bursts.epochs import Start
from autotune.recorder.naming import length_of
from autotune.recorder.stream import CACHED_BATCHES, Holding
from autotune.training.ranks import this_rank

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.training.tuned import Tuned

DYING_SECONDS = 0.5
"""Torch may tell a worker's death before its exit status can be read, by so much at most; of all workers together."""
RESTART_LIMIT_SECONDS = 4.0
"""A loader that is slower than this is not restarted: torch kills a worker that does not end within five seconds."""


class NoBatchError(Exception):
    """The loader yields nothing."""


class CountedCollate:
    """Collates samples to ``(how many, batch)``; a class, so that workers that are spawned can unpickle it."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[int, Any]:
        """A batch and its number of samples; a dataset that fetches by the batch may hand over columns."""
        rows: Sized = next(iter(samples.values())) if isinstance(samples, Mapping) else samples
        return len(rows), self._collate(samples)


class Feed(Holding):
    """Endless ``(samples, batch)``, epoch after epoch.

    Args:
        make_loader: Makes a DataLoader that collates with a `CountedCollate`.
        clock: Of the device that waits for batches.

    Attributes:
        waits: Marks of the clock before and after each wait for a batch, starts of the loader left out.
        starts: Each start of the loader.
        start_seconds: Spent at them.
        epoch_batches: Batches of the last whole epoch, None before its end.
        epoch_samples: Its samples.
        drawn: Batches drawn so far, by this rank.
        position: Samples of the stream that were passed, those of an incomplete last batch that was dropped included:
            what two configs that read the same stream have in common.
    """

    def __init__(self, make_loader: Callable[[], DataLoader[Any]], clock: Clock | None = None) -> None:
        self._make_loader = make_loader
        self.clock: Clock = clock or HostClock()
        self.loader = make_loader()
        self.waits: list[tuple[Any, Any]] = []
        self.starts: list[Start] = []
        self.start_seconds = 0.0
        self.epoch_batches: int | None = None
        self.epoch_samples: int | None = None
        self.drawn = 0
        self.position = 0
        self.ranks = this_rank().count
        self._batches: Iterator[Any] | None = None
        self._restarting = False

    def __iter__(self) -> Generator[tuple[int, Any], None, None]:
        end_seconds, after_epoch = 0.0, False
        while True:
            batches, samples = 0, 0
            length = self.stream_length
            whole = not length or self.position % length == 0
            began = perf_counter()
            self._batches = iter(self.loader)
            created = perf_counter()
            item = next(self._batches, None)
            # Starting workers and waiting for their first batch happens once an epoch: it is charged by the epoch.
            waited = perf_counter() - created
            self.starts.append(Start(end_seconds + created - began, waited, after_epoch))
            self.start_seconds += end_seconds + created - began + waited
            while item is not None:
                self.drawn += 1
                batches += 1
                item = self._of_all_ranks(item)
                samples += item[0]
                # Ranks that share out their data themselves may end with batches of different sizes, but must come to
                # one place after as many of them.
                self.position += item[0] if length or self.ranks == 1 else self.ranks * (self.loader.batch_size or 1)
                yield item
                if self._restarting:
                    break
                asked, mark = perf_counter(), self.clock.mark()
                item = next(self._batches, None)
                end_seconds = perf_counter() - asked
                if item is not None:
                    self.waits.append((mark, self.clock.mark()))
            if batches == 0 and whole:
                once = " after its first epoch; an iterable dataset must begin again at each iter()"
                raise NoBatchError(f"the loader yields no batch{once if after_epoch else ''}")
            after_epoch = not self._restarting
            if self._restarting:
                end_seconds, self._restarting = 0.0, False
            else:
                if whole:
                    self.epoch_batches, self.epoch_samples = batches, samples
                if length:
                    self.position += -self.position % length

    @property
    def stream_length(self) -> int | None:
        """Samples that all ranks draw in an epoch; None where the loader does not know."""
        length = length_of(self.loader.sampler)
        return length * self.ranks if length is not None else None

    def _of_all_ranks(self, item: tuple[int, Any]) -> tuple[int, Any]:
        """A batch with the number of samples that all ranks draw while this one draws it."""
        return item if self.ranks == 1 else (item[0] * self.ranks, item[1])

    @property
    def reads_batches(self) -> bool:
        """Whether a worker may read a whole batch in one go, rather than sample by sample."""
        dataset = self.loader.dataset
        while isinstance(dataset, Subset):  # which has the method, and calls its data set's if that has it too
            dataset = dataset.dataset
        return isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitems__")

    def take_wait_seconds(self) -> float:
        """What the waits so far took, of which all have passed; they are forgotten."""
        waits, self.waits = self.waits, []
        return sum(self.clock.seconds(asked, came) for asked, came in waits)

    def restart(self, position: int = 0) -> None:
        """Drops what the workers have prepared, so that the next batch comes from a loader with an empty queue.

        Args:
            position: Place in the stream of samples where that loader begins, in the middle of an epoch perhaps.
        """
        self._batches = None
        self.loader = self._make_loader()
        self.position = position
        self._restarting = True

    def close(self) -> None:
        """Ends the loader, and with it its workers."""
        self._batches = None

    @property
    def is_between_epochs(self) -> bool:
        """Whether the next batch is the first of an epoch, as far as that is known."""
        length = self.stream_length
        return length is not None and self.position % max(1, length) == 0

    @property
    def has_dead_worker(self) -> bool:
        """Whether one of its workers was ended, by a signal or by its own failure."""
        return any(worker.exitcode for worker in self._workers)

    def killing_signal(self) -> int | None:
        """The signal by which a worker was ended, if one was."""
        workers = self._workers
        killed_by = _signal_of(workers)
        if killed_by is None and (ends := _ends_of_living(workers)):
            connection.wait(ends, timeout=DYING_SECONDS)
            killed_by = _signal_of(workers)
        return killed_by if killed_by is not None else _signal_of_dead_child()


def _signal_of(workers: Sequence[Any]) -> int | None:
    """The signal that ended one of them."""
    for worker in workers:
        with contextlib.suppress(ValueError):  # closed already
            if worker.exitcode is not None and worker.exitcode < 0:
                return -int(worker.exitcode)
    return None


def _ends_of_living(workers: Sequence[Any]) -> list[int]:
    """What can be waited for to see the first of them end."""
    ends = []
    for worker in workers:
        with contextlib.suppress(ValueError):  # closed already
            if worker.exitcode is None:
                ends.append(worker.sentinel)
    return ends


def _signal_of_dead_child() -> int | None:
    """The signal that ended a child that nobody has waited for yet: workers may die while the loader starts them."""
    if not hasattr(os, "waitid"):
        return None
    with contextlib.suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_code in {os.CLD_KILLED, os.CLD_DUMPED}:
            return int(ended.si_status)
    return None


class DeviceFeed(Feed):
    """A few batches that stay on the device, over and over: what compute alone could reach."""

    def __init__(self, make_loader: Callable[[], DataLoader[Any]], tuned: Tuned) -> None:
        super().__init__(make_loader, clock=clock_of(tuned.device))
        self._cached = [tuned.to_device(batch) for batch in itertools.islice(self.loader, CACHED_BATCHES)]

    def __iter__(self) -> Generator[tuple[int, Any], None, None]:
        if not self._cached:
            raise NoBatchError("the loader yields no batch")
        for item in itertools.cycle(self._cached):
            self.drawn += 1
            everyones = self._of_all_ranks(item)
            self.position += everyones[0]
            yield everyones

    def restart(self, position: int = 0) -> None:
        """Goes on with the same batches, at another place in the stream."""
        self.position = position
