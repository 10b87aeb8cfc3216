"""Reads samples with random numbers that depend only on their index.

Augmentation draws other numbers with each number of workers, because each worker has its own seed. Loaders' batches can
only be compared bitwise without that effect.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from .order import epoch_seed, random_numbers


class SeededReads:
    """A map-style data set that reads each sample with its own random numbers; workers can unpickle it.

    Args:
        dataset: The script's data set.
        seed: Seed of all samples.

    Attributes:
        last: Seed of the last read in this process.
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
    """Collates with random numbers that depend on the last sample of a batch.

    Args:
        collate: The script's own collate function.
        reads: The data set that reads its samples.
    """

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
