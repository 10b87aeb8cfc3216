"""The training loader of a script as an endless stream, from which a burst trains.

Epochs follow each other invisibly to the script, because its work between them (evaluating and saving) is not measured.
The order of samples depends only on seed and epoch, so that two configs train on the same samples.
"""

from __future__ import annotations

import contextlib
import copy
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from ..timing.endless import Counted, Endless
from ..torch_settings.naming import count_of, has_own_iterator, length_of
from .batches import Batches
from .open_files import with_own_places
from .order import Beginning, Seeded, epoch_seed, random_numbers

if TYPE_CHECKING:
    from ..timing.clock import Clock
    from .changes import Changes


ITERATE = DataLoader.__iter__
"""torch's own function, even if it is replaced later."""


class Stream(Endless):
    """The stream of one of a script's loaders, under some changes.

    Args:
        loader: The script's loader.
        changes: The changes to recreate it with.
        seed: Seed of the order of samples.
        drawn: Called with each batch before the script gets it.
        cached: Whether a few batches repeat, so that nothing is loaded.
        seeds_reading: Whether a sample's random numbers depend only on its index, not on the process that reads it. It
            allows a bitwise comparison of losses.
        ranks: Processes that train together. Each draws its share; the samples of all are counted.
        usual_samples: Samples of a batch if the script makes its batches itself. All ranks must reach the same position
            after the same number of batches.
        pass_batches: Batches after which the script restarts its loader; None if it reaches the end.
        clock: Marks waits; the host's clock by default.

    Attributes:
        epoch_samples: Samples of an epoch, of all ranks; None if unknown.
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
        clock: Clock | None = None,
    ) -> None:
        self._script_loader = loader
        self._arguments = _shortened(changes.arguments(loader), pass_batches)
        self._batched = loader.batch_sampler is not None or loader.batch_size is not None
        length = length_of(self._arguments["sampler"]) if "sampler" in self._arguments else None
        self.length = length * ranks if length is not None and self._batched else None
        # If the data set yields batches, its length counts batches.
        self.epoch_samples = self.length if self._batched or length is None else length * ranks * usual_samples
        self.usual_samples = usual_samples
        self._note_drawn = drawn
        self._seeds_reading = seeds_reading
        super().__init__(seed, ranks=ranks, clock=clock)
        if cached:
            self._cache = self._first_batches()

    @property
    def is_between_epochs(self) -> bool:
        """Whether the next batch is known to start the loader; a lap must include the start."""
        return (self.running is None and not self._cache) or super().is_between_epochs

    def __next__(self) -> tuple[int, Any]:
        """The next batch, perhaps of the next epoch, with its number of samples."""
        samples, batch = super().__next__()
        self._note_drawn(batch)
        return samples, batch

    def _iterated(self) -> Iterator[Any]:
        """Torch's iterator of the loader. To compare losses, its seed is drawn from fixed random numbers."""
        if has_own_iterator(self.loader):
            return OwnEpoch(ITERATE, self.loader, epoch_seed(self.seed, len(self.starts)))
        if not self._seeds_reading:
            return ITERATE(self.loader)
        with random_numbers(epoch_seed(self.seed, len(self.starts))):
            return ITERATE(self.loader)

    def _made(self, start: int) -> DataLoader[Any]:
        """The script's loader with the changes, and with samples in the order of the seed."""
        if has_own_iterator(self._script_loader):  # no plain loader could make its batches
            own = copy.copy(self._script_loader)
            own._iterator = None  # persistent workers: each player has its own
            return own
        arguments = dict(self._arguments)
        start //= self.ranks
        if "batch_sampler" in arguments:
            arguments["batch_sampler"] = Seeded(arguments["batch_sampler"], self.seed, start, batches=True)
        elif self.epoch_samples is not None:
            start = start if self.length is not None else 0
            arguments["sampler"] = Seeded(arguments["sampler"], self.seed, start)
        collate = arguments["collate_fn"]
        if self._seeds_reading and not arguments.keys().isdisjoint({"sampler", "batch_sampler"}):  # map-style
            arguments["dataset"] = reads = seeded_reads(arguments["dataset"], self.seed)
            collate = SeededCollate(collate, reads)
        arguments["collate_fn"] = Counted(collate, batched=self._batched)
        if arguments["num_workers"]:
            arguments["worker_init_fn"] = with_own_places(arguments.get("worker_init_fn"))
        return DataLoader(**arguments)


def _shortened(arguments: dict[str, Any], batches: int | None) -> dict[str, Any]:
    """A loader's arguments, changed to end its epochs after a number of batches."""
    if batches is None:
        return arguments
    if "batch_sampler" in arguments:
        return {**arguments, "batch_sampler": Beginning(arguments["batch_sampler"], batches)}
    if "sampler" not in arguments:  # an iterable data set
        return arguments
    count = batches * (arguments["batch_size"] or 1)
    return {**arguments, "sampler": Beginning(arguments["sampler"], count)}


class OwnEpoch(Batches):
    """Yields batches with their numbers of samples. Their order depends on a seed as far as torch's samplers do."""

    def __init__(self, iterate: Callable[[Any], Iterator[Any]], loader: DataLoader[Any], seed: int) -> None:
        self._seed = seed
        self._size, self._rest = loader.batch_size, length_of(loader.sampler)
        self._is_begun = False
        for one in (loader, loader.sampler):
            if (own := getattr(one, "generator", None)) is not None:
                own.manual_seed(seed)
        with random_numbers(seed):
            self._batches = iterate(loader)

    def __next__(self) -> tuple[int, Any]:
        # Without workers, a sampler draws its order only with the first batch.
        with contextlib.nullcontext() if self._is_begun else random_numbers(self._seed):
            batch = next(self._batches)
        self._is_begun = True
        return self._samples_of(batch), batch

    def _inner(self) -> Any:
        return self._batches

    def _samples_of(self, batch: Any) -> int:
        """The number of samples that the sampler drew: the batch's first tensor may also hold their neighbours."""
        if self._size is None:
            return count_of(batch)
        samples = self._size if self._rest is None else min(self._size, max(1, self._rest))
        self._rest = self._rest - samples if self._rest is not None else None
        return samples


class SeededReads:
    """A map-style data set that reads each sample with its own random numbers; workers can unpickle it.

    Augmentation draws other numbers with each number of workers, because each worker has its own seed. Loaders' batches
    can only be compared bitwise without that effect.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self.last = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        """Attributes that workers' start-up and collating need."""
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Attributes that workers' start-up sets, such as an open file, belong to the data set."""
        if name in {"_dataset", "_seed", "last"}:
            super().__setattr__(name, value)
        else:
            setattr(self._dataset, name, value)

    def __getitem__(self, index: Any) -> Any:
        return self._read(self._dataset.__getitem__, index)

    def _read(self, read: Callable[[Any], Any], index: Any) -> Any:
        self.last = epoch_seed(self._seed, zlib.crc32(repr(index).encode()))
        with random_numbers(self.last):
            return read(index)


class SeededBatchReads(SeededReads):
    """The same for a data set that is indexed by lists."""

    def __getitems__(self, indices: Any) -> Any:
        return self._read(self._dataset.__getitems__, indices)


class SeededCollate:
    """Collates with random numbers that depend on the last sample of a batch."""

    def __init__(self, collate: Callable[[Any], Any], reads: SeededReads) -> None:
        self._collate = collate
        self._reads = reads

    def __call__(self, samples: Any) -> Any:
        """Collates a batch."""
        with random_numbers(self._reads.last):
            return self._collate(samples)


def seeded_reads(dataset: Any, seed: int) -> SeededReads:
    """Wraps a data set; the wrapper is indexed by lists if the data set is."""
    kind = SeededBatchReads if callable(getattr(dataset, "__getitems__", None)) else SeededReads
    return kind(dataset, seed)
