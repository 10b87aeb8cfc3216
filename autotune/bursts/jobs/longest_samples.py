"""The worst batch: with variable lengths, an average batch says nothing about the memory that the longest takes.

The check finds the largest samples. After its timed part, each burst takes two optimizer steps on a batch of them: a
config that would run out of memory later in training does so now.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from autotune.bursts.jobs.feed import copied
from autotune.torch_settings.naming import bytes_of, tensors_in
from autotune.workload.workload import Workload

LARGEST_SAMPLES = 64
SCAN_SECONDS = 1.0
MOST_SCANNED = 100_000
WORST_STEPS = 2


def find_largest(workload: Workload) -> tuple[int, ...]:
    """Indices of the largest samples, largest first: by `sample_size`, else by their tensors' bytes.

    Looks at samples that training draws, in random order, until the time is up. An iterable dataset has no indices: the
    result is empty.
    """
    dataset: Any = workload.dataset
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not indexed or isinstance(dataset, IterableDataset):
        return ()
    drawn: Sequence[Any] = range(len(dataset))
    if workload.sampler is not None:
        drawn = list(dict.fromkeys(itertools.islice(workload.sampler, MOST_SCANNED)))
    deadline = time.monotonic() + SCAN_SECONDS
    sizes: dict[Any, float] = {}
    for index in random.Random(0).sample(drawn, min(len(drawn), MOST_SCANNED)):
        if sizes and time.monotonic() > deadline:
            break
        sample = dataset[index]
        own = workload.sample_size
        sizes[index] = float(own(sample) if own is not None else sum(map(bytes_of, tensors_in(sample))))
    return tuple(sorted(sizes, key=lambda index: sizes[index], reverse=True)[:LARGEST_SAMPLES])


def worst_batch(workload: Workload, largest: Sequence[int], batch_size: int) -> Any:
    """A full batch of the largest samples, repeated if there are fewer; each is read once."""
    dataset: Any = workload.dataset
    loaded = [dataset[index] for index in largest[:batch_size]]
    repeats = itertools.islice(itertools.cycle(loaded), batch_size - len(loaded))
    samples = [*loaded, *map(copied, repeats)]  # a collate_fn may change each sample that it is given
    return (workload.collate_fn or default_collate)(samples)
