"""The order of samples, which depends only on the seed and the epoch, never on the config.

So two configs that are compared train on the same samples: ``batch_size`` 4 × 8 and 16 × 2 read the same 32 for the
same optimizer step. Where lengths vary, both get the same long samples.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from ..torch_settings.naming import length_of
from .importing import after_import

MOST_LISTED = 5_000_000
"""Most indices per epoch that are listed, which takes 40 MB. A larger sampler of the user is drawn step by step, with
the process's own random numbers."""

DRAWN_TOGETHER = 256
"""Batches of indices that are drawn under one seed: seeding takes 0.2 ms, less than a microsecond per batch."""


class EpochOrder(Sampler[int]):
    """Draws all indices in an order that is shuffled for each epoch.

    Args:
        length: Length of the data set.
        seed: Seed of the orders.
        start: First position in the stream of all epochs' samples.
    """

    def __init__(self, length: int, seed: int, start: int = 0) -> None:
        self._length = length
        self._seed = seed
        self._epoch, self._skipped = divmod(start, max(1, length))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(epoch_seed(self._seed, self._epoch))
        self._epoch += 1
        skipped, self._skipped = self._skipped, 0
        yield from torch.randperm(self._length, generator=generator)[skipped:].tolist()


class SeededSampler(Sampler[Any]):
    """The user's own sampler, with random numbers that depend only on the seed and the epoch.

    Args:
        sampler: The user's sampler.
        seed: Seed of the orders.
        start: First position in the stream of all epochs' samples.
    """

    def __init__(self, sampler: Any, seed: int, start: int = 0) -> None:
        self._sampler = sampler
        self._seed = seed
        self._epoch, self._skipped = divmod(start, len(sampler) or 1) if isinstance(sampler, Sized) else (0, 0)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        sized = isinstance(self._sampler, Sized)
        if not sized or len(self._sampler) > MOST_LISTED:
            return iter(self._sampler)
        self._epoch += 1
        skipped, self._skipped = self._skipped, 0
        if (own := getattr(self._sampler, "generator", None)) is not None:  # other players draw from it, too
            own.manual_seed(epoch_seed(self._seed, self._epoch))
        with random_numbers(epoch_seed(self._seed, self._epoch)):
            # Some samplers never end, but have a length.
            return iter(list(itertools.islice(self._sampler, len(self._sampler)))[skipped:])


class SeededBatches(Sampler[Any]):
    """A script's own batches of indices, with random numbers that depend only on the seed and the epoch.

    They are drawn a few at a time: some samplers never end, though they may have a length.

    Args:
        batches: The script's batch sampler.
        seed: Seed of the orders.
        start: Samples to skip in the stream of all epochs.
    """

    def __init__(self, batches: Any, seed: int, start: int = 0) -> None:
        self._batches = batches
        self._seed = seed
        self._epoch = 0
        self._rest = self._after(start) if start else None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        rest, self._rest = self._rest, None
        return self._next_epoch() if rest is None else rest

    def _after(self, start: int) -> Iterator[Any]:
        """The rest of the epoch that contains a sample. Skipped batches are drawn, as in training on them."""
        before, position = -1, 0
        while before < position:  # ends at an epoch without samples
            before = position
            epoch = self._next_epoch()
            for batch in epoch:
                if position >= start:
                    return itertools.chain([batch], epoch)
                position += len(batch)
        return iter(())

    def _next_epoch(self) -> Iterator[Any]:
        self._epoch += 1
        return self._drawn(epoch_seed(self._seed, self._epoch))

    def _drawn(self, seed: int) -> Iterator[Any]:
        batches = self._of_epoch()
        for part in itertools.count():
            with random_numbers(epoch_seed(seed, part)):
                drawn = list(itertools.islice(batches, DRAWN_TOGETHER))
            if not drawn:
                return
            yield from drawn

    def _of_epoch(self) -> Iterator[Any]:
        yield from itertools.islice(self._batches, length_of(self._batches))


class Beginning(Sampler[Any]):
    """Yields only the first indices or batches of each epoch, for a script that never draws more."""

    def __init__(self, sampler: Any, count: int) -> None:
        self.generator = getattr(sampler, "generator", None)
        self._sampler = sampler
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self._count)


@contextlib.contextmanager
def random_numbers(seed: int) -> Iterator[None]:
    """Seeds random numbers on the CPU (torch, Python, NumPy) within its block, and restores their state afterwards."""
    python, numpy = random.getstate(), sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    with torch.random.fork_rng(devices=[]):
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(state)


def seed_all(seed: int) -> None:
    """Seeds torch, Python, and NumPy if it is imported: the sources of augmentation, dropout and samplers."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def seed_start() -> None:
    """Seeds a script's start, which may split its data at random; NumPy as soon as it is imported."""
    seed_all(0)
    after_import("numpy", lambda: sys.modules["numpy"].random.seed(0))


def epoch_seed(seed: int, epoch: int) -> int:
    """Derives a seed for each epoch."""
    return (seed * 1_000_003 + epoch) % 2**63
