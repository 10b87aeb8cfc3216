"""The order of samples, which depends only on the seed and the epoch, never on the config.

So two configs that are compared train on the same samples: ``batch_size`` 4 × 8 and 16 × 2 read the same 32 for the
same optimizer step. Where lengths vary, both get the same long samples.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from ..torch_settings.naming import length_of
from .importing import after_import

DRAWN_TOGETHER = 8192
"""Samples whose indices are drawn under one seed. Seeding takes 0.2 ms, a fraction of a microsecond per sample."""


class Seeded(Sampler[Any]):
    """A sampler of indices or of batches, with random numbers that depend only on the seed and the epoch.

    It is drawn a part at a time: some samplers never end, though they may have a length.

    Args:
        sampler: The sampler.
        seed: Seed of the orders.
        start: Samples to skip in the stream of all epochs. Those of the epoch that it begins in are drawn.
        batches: Whether an item is a batch of indices; else it is an index.
    """

    def __init__(self, sampler: Any, seed: int, start: int = 0, *, batches: bool = False) -> None:
        self._sampler = sampler
        self._seed = seed
        self._batches = batches
        length = None if batches else length_of(sampler)
        self._epoch, self._start = divmod(start, length) if length else (0, start)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        # The chain runs in C: where data is collated once, a generator costs as much as the rest of reading.
        return itertools.chain.from_iterable(self._parts())

    def _parts(self) -> Iterator[list[Any]]:
        """The items of an epoch, part by part, from where it begins."""
        # Torch makes two iterators of a batch sampler for workers: the one that it never draws from takes no epoch.
        start, self._start = self._start, 0
        before, position = -1, 0
        while before < position:  # ends at an epoch without samples
            before, parts = position, self._next_epoch()
            for part in parts:
                for number, item in enumerate(part):
                    if position >= start:
                        yield part[number:]
                        yield from parts
                        return
                    position += self._samples_of(item)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to a sampler that accepts it."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def _next_epoch(self) -> Iterator[list[Any]]:
        self._epoch += 1
        return self._drawn(epoch_seed(self._seed, self._epoch))

    def _drawn(self, seed: int) -> Iterator[list[Any]]:
        items: Iterator[Any] | None = None
        own = [getattr(one, "generator", None) for one in (self._sampler, getattr(self._sampler, "sampler", None))]
        for part in itertools.count():
            with random_numbers(epoch_seed(seed, part)):
                for generator in own:
                    if isinstance(generator, torch.Generator):  # other players draw from it, too
                        generator.manual_seed(epoch_seed(seed, part))
                items = items or itertools.islice(self._sampler, length_of(self._sampler))  # may draw all at once
                drawn, samples = self._some(items)
            yield drawn
            if samples < DRAWN_TOGETHER:
                return

    def _some(self, items: Iterator[Any]) -> tuple[list[Any], int]:
        """The next items, of `DRAWN_TOGETHER` samples where there are that many; and their samples."""
        if not self._batches:
            indices = list(itertools.islice(items, DRAWN_TOGETHER))
            return indices, len(indices)
        batches, samples = list[Any](), 0
        while samples < DRAWN_TOGETHER and (batch := next(items, self)) is not self:
            batches.append(batch)
            samples += len(batch) or 1
        return batches, samples

    def _samples_of(self, item: Any) -> int:
        return len(item) if self._batches else 1


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
    torch_state, python, numpy = torch.get_rng_state(), random.getstate(), sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    # `torch.manual_seed` also seeds all devices, whose state is not restored here, and takes a millisecond without any.
    torch.default_generator.manual_seed(seed)
    _seed_others(seed)
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(state)


def seed_all(seed: int) -> None:
    """Seeds torch, Python, and NumPy if it is imported: the sources of augmentation, dropout and samplers."""
    torch.manual_seed(seed)
    _seed_others(seed)


def _seed_others(seed: int) -> None:
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
