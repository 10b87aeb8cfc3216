"""Torch's iterator of a loader, for a data set that is collated once: it selects small batches several at once.

Where a step takes half a millisecond, torch's own iterator and a selection for each batch take 8 % of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from autotune.recorder.order import Seeded
from autotune.training.ranks import EpochSampler, SharedSampler

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from autotune.training.placement import PlacedDataset, Rows

AHEAD_BYTES, MOST_AHEAD = 2**16, 16
"""Most bytes and batches to select at once. They stay in a processor's cache until they are used; more batches than
these gain less than a microsecond each."""


class Selecting(_SingleProcessDataLoaderIter):
    """Gives the batches of a pass, and draws random numbers, as torch's own iterator does.

    Args:
        loader: Reads a placed data set in batches.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._placed = cast("PlacedDataset", loader.dataset)
        self._due: deque[Sequence[Any]] = deque()  # indices of the next batches
        self._ready: deque[Rows] = deque()  # selected for the first of them
        self._size = loader.batch_size or 0 if _draws_at_once(loader._index_sampler) else 0  # of batches drawn ahead

    def __next__(self) -> Any:
        if not self._due:
            self._due.extend(islice(self._sampler_iter, self._ahead()))
        if not self._due:
            raise StopIteration
        batch = self._collate_fn(self._placed.next_of(self._due, self._ready))  # type: ignore[arg-type]
        self._num_yielded += 1
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch  # type: ignore[no-untyped-call]

    def _ahead(self) -> int:
        size = self._placed.sample_bytes * self._size
        return int(min(MOST_AHEAD, max(1, AHEAD_BYTES // size))) if size else 1


def _draws_at_once(batches: Any) -> bool:
    """Whether the indices of a pass are all drawn at its beginning, from no generator that others use."""
    sampler: Any = batches.sampler if type(batches) is BatchSampler else None
    while type(sampler) in {Seeded, SharedSampler}:
        sampler = sampler.sampler
    is_plain = type(sampler) in {SequentialSampler, DistributedSampler, EpochSampler}
    return is_plain or (type(sampler) is RandomSampler and sampler.generator is None and not sampler.replacement)
