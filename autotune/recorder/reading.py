"""Reading samples so that their random numbers depend on nothing but their index.

Who augments draws other numbers with every number of workers, each of which has a seed of its own; what a loader
delivers can only be compared to the last bit when that is taken out of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from .order import epoch_seed, random_numbers


class SeededReads:
    """A map-style data set, each sample of which is read under random numbers of its own; workers can unpickle it.

    Args:
        dataset: The script's.
        seed: Of all samples.

    Attributes:
        last: Seed of what was read last, in this process.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self.last = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        """What workers' start-up and collating ask of a data set."""
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
    """The same of a data set that is read by lists of indices."""

    def __getitems__(self, indices: Any) -> Any:
        return self._read(self._dataset.__getitems__, indices)


class SeededCollate:
    """Collates under random numbers that depend on the sample of a batch that was read last.

    Args:
        collate: The script's own.
        reads: Where its samples come from.
    """

    def __init__(self, collate: Callable[[Any], Any], reads: SeededReads) -> None:
        self._collate = collate
        self._reads = reads

    def __call__(self, samples: Any) -> Any:
        """A batch."""
        with random_numbers(self._reads.last):
            return self._collate(samples)


def seeded_reads(dataset: Any, seed: int) -> SeededReads:
    """A data set that is read so, by lists of indices where it is itself."""
    kind = SeededBatchReads if callable(getattr(dataset, "__getitems__", None)) else SeededReads
    return kind(dataset, seed)
