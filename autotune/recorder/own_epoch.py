"""An epoch of a loader whose class makes its own iterator, so that the loader cannot be recreated."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..torch_settings.naming import count_of, length_of
from .batches import Batches
from .order import random_numbers

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class OwnEpoch(Batches):
    """Yields batches with their numbers of samples. Their order depends on a seed as far as torch's samplers do.

    Args:
        iterate: Torch's own ``DataLoader.__iter__``.
        loader: The script's loader.
        seed: Seed of this epoch.
    """

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
