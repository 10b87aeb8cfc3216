"""The training loader of a script as a stream without end, from which a burst trains.

Epoch follows epoch without the script's noticing: what it does between them, evaluating and saving, is not what is
measured. The order of samples depends on seed and epoch alone, so that two configs train on the same samples.
"""

from __future__ import annotations

import contextlib
import copy
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from .naming import count_of, has_own_iterator, length_of
from .order import Beginning, SeededBatches, SeededSampler, epoch_seed, random_numbers
from .own_epoch import OwnEpoch
from .reading import SeededCollate, seeded_reads

if TYPE_CHECKING:
    from .changes import Changes

CACHED_BATCHES = 4
ITERATE = DataLoader.__iter__
"""torch's own, whatever stands in its place later."""


class Counted:
    """Collates samples to ``(how many, batch)``; a class, so that workers that are spawned can unpickle it.

    Args:
        collate: The script's own.
        batched: Whether it gets a list of samples; else the data set yields batches itself.
    """

    def __init__(self, collate: Callable[[Any], Any], batched: bool) -> None:
        self._collate = collate
        self._batched = batched

    def __call__(self, samples: Any) -> tuple[int, Any]:
        """A batch and its number of samples."""
        batch = self._collate(samples)
        if not self._batched:
            return count_of(batch), batch
        return len(next(iter(samples.values())) if isinstance(samples, Mapping) else samples), batch


class Watched:
    """An iterator of a loader, each of whose batches is looked at before the script gets it.

    Args:
        batches: The iterator.
        drawn: Called with each batch.

    Attributes:
        is_over: Whether there are no more, or reading has failed.
        count: Batches so far.
    """

    def __init__(self, batches: Iterator[Any], drawn: Callable[[Any], None] = lambda _: None) -> None:
        self.is_over = False
        self.count = 0
        self._batches = batches
        self._drawn = drawn

    def __iter__(self) -> Watched:
        return self

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except BaseException:
            self.is_over = True
            raise
        self.count += 1
        self._drawn(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._batches, name)


class Holding:
    """Who draws from a loader, and can stop its workers.

    Attributes:
        _batches: The iterator that is drawn from; None before there is one.
    """

    _batches: Iterator[Any] | None = None

    @property
    def _workers(self) -> list[Any]:
        return getattr(self._batches, "_workers", [])

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


class Stream(Holding):
    """Batches without end.

    Args:
        loader: The script's.
        changes: With which it is made again.
        seed: Of the order of samples.
        before_draw: Called before each batch is drawn: all that was drawn has been trained on.
        drawn: Called with each batch before the script gets it.
        cached: Whether the same few batches come over and over, so that nothing is loaded.
        seeds_reading: Whether the random numbers of reading a sample depend on its index alone, not on the process that
            reads it: for comparing losses to the last bit.
        ranks: Processes that train together, each of which draws its share: samples are counted of all.
        usual_samples: Of a batch, where the script makes its batches itself: all ranks must come to one place after as
            many of them.
        pass_batches: After which the script leaves its loader off, and begins anew; None where it comes to its end.

    Attributes:
        position: Samples of the stream that were passed.
        drawn: Batches drawn so far, by this rank.
        samples: In them.
        starts: What each start of the loader cost: seconds to create it, to wait for its first batch, and whether an
            epoch had ended.
        start_seconds: Spent at them.
        wait_seconds: Spent waiting for all other batches.
        last_samples: Of the batch drawn last.
        length: Samples that the sampler hands out in an epoch, to all ranks together; None where that is not known.
        epoch_samples: Of an epoch, of all ranks together; None where that is not known.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        changes: Changes,
        seed: int,
        drawn: Callable[[Any], None] = lambda _: None,
        *,
        cached: bool = False,
        seeds_reading: bool = False,
        ranks: int = 1,
        usual_samples: int = 1,
        pass_batches: int | None = None,
    ) -> None:
        self.position = 0
        self.drawn = 0
        self.samples = 0
        self.starts: list[tuple[float, float, bool]] = []
        self.start_seconds = 0.0
        self.wait_seconds = 0.0
        self.last_samples = 0
        self._script_loader = loader
        self._arguments = _shortened(changes.arguments(loader), pass_batches)
        self._batched = loader.batch_sampler is not None or loader.batch_size is not None
        length = length_of(self._arguments["sampler"]) if "sampler" in self._arguments else None
        self.length = length * ranks if length is not None and self._batched else None
        # Where the data set yields batches, its length is theirs.
        self.epoch_samples = self.length if self._batched or length is None else length * ranks * usual_samples
        self._ranks, self._usual_samples = ranks, usual_samples
        self._seed = seed
        self._tell_drawn = drawn
        self._seeds_reading = seeds_reading
        self._cache: list[Any] | None = [] if cached else None
        self._loader = self._made(0)
        self._batches: Iterator[Any] | None = None
        self._after_epoch = False
        self._end_seconds = 0.0

    def __iter__(self) -> Stream:
        return self

    @property
    def running(self) -> Iterator[Any] | None:
        """Torch's own iterator, of this epoch."""
        return self._batches

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch; None where the script makes its batches itself."""
        return self._loader.batch_size

    @property
    def workers(self) -> int:
        """Processes that load."""
        return self._loader.num_workers

    @property
    def queue(self) -> int:
        """Batches that they prepare in advance."""
        return self.workers * self.prefetched

    @property
    def prefetched(self) -> int:
        """Batches that each of them prepares in advance."""
        return self._loader.prefetch_factor or 0

    @property
    def is_between_epochs(self) -> bool:
        """Whether the loader starts with the next batch, as far as that is known."""
        if self._batches is None:
            return True
        if not self.length or (self._cache is not None and len(self._cache) == CACHED_BATCHES):
            return False
        rest = -self.position % self.length
        return rest < (self.last_samples if self._arguments.get("drop_last") else 1)

    def restart(self, position: int) -> None:
        """Goes on at another place, with an empty queue."""
        self._seed += 1
        self._batches = None
        self._loader = self._made(position)
        self.position = position
        self._after_epoch, self._end_seconds = False, 0.0

    def close(self) -> None:
        """Ends its loader's workers, which must not be held."""
        self._batches = self._loader._iterator = None

    def __next__(self) -> Any:
        return self.draw()

    def draw(self) -> Any:
        """The next batch, of the next epoch perhaps."""
        if self._cache is not None and len(self._cache) == CACHED_BATCHES:
            samples, batch = self._cache[self.drawn % CACHED_BATCHES]
        else:
            samples, batch = self._drawn()
            if self._cache is not None:
                self._cache.append((samples, batch))
        self.drawn += 1
        self.last_samples = samples * self._ranks
        self.samples += self.last_samples
        alike = self._ranks == 1 or self.length is not None
        self.position += self.last_samples if alike else self._usual_samples * self._ranks
        self._tell_drawn(batch)
        return batch

    def _drawn(self) -> tuple[int, Any]:
        if self._batches is not None:
            asked = perf_counter()
            item = next(self._batches, None)
            self._end_seconds = perf_counter() - asked
            if item is not None:
                self.wait_seconds += self._end_seconds
                return item  # type: ignore[no-any-return]
            if self.length:
                self.position += -self.position % self.length  # an incomplete last batch was dropped
            self._after_epoch = True
        began = perf_counter()
        self._batches = self._iterated()
        created = perf_counter()
        item = next(self._batches, None)
        waited = perf_counter() - created
        creating = self._end_seconds + created - began
        self.starts.append((creating, waited, self._after_epoch))
        self.start_seconds += creating + waited
        if item is None:
            raise RuntimeError("the training loader yields no batch any more: it does not begin again at each iter()")
        return item  # type: ignore[no-any-return]

    def _iterated(self) -> Iterator[Any]:
        """Torch's iterator of the loader; drawing its seed, which workers that persist draw once, is no news."""
        if has_own_iterator(self._loader):
            return OwnEpoch(ITERATE, self._loader, epoch_seed(self._seed, len(self.starts)))
        if not self._seeds_reading:
            return ITERATE(self._loader)
        with random_numbers(epoch_seed(self._seed, len(self.starts))):
            return ITERATE(self._loader)

    def _made(self, start: int) -> DataLoader[Any]:
        """The script's loader with the changes, whose samples come in an order of the seed's."""
        if has_own_iterator(self._script_loader):  # it hands out what no plain loader would
            own = copy.copy(self._script_loader)
            own._iterator = None  # of workers that persist: each player has its own
            return own
        arguments = dict(self._arguments)
        start //= self._ranks
        if "batch_sampler" in arguments:
            arguments["batch_sampler"] = SeededBatches(arguments["batch_sampler"], self._seed, start)
        elif self.epoch_samples is not None:
            start = start if self.length is not None else 0
            arguments["sampler"] = SeededSampler(arguments["sampler"], self._seed, start)
        collate = arguments["collate_fn"]
        if self._seeds_reading and not arguments.keys().isdisjoint({"sampler", "batch_sampler"}):  # nothing iterable
            arguments["dataset"] = reads = seeded_reads(arguments["dataset"], self._seed)
            collate = SeededCollate(collate, reads)
        arguments["collate_fn"] = Counted(collate, self._batched)
        return DataLoader(**arguments)


def _shortened(arguments: dict[str, Any], batches: int | None) -> dict[str, Any]:
    """A loader's arguments, so that its epochs end after so many batches."""
    if batches is None:
        return arguments
    if "batch_sampler" in arguments:
        return {**arguments, "batch_sampler": Beginning(arguments["batch_sampler"], batches)}
    if "sampler" not in arguments:  # of an iterable data set
        return arguments
    count = batches * (arguments["batch_size"] or 1)
    return {**arguments, "sampler": Beginning(arguments["sampler"], count)}
