"""Bursts that train draw augmentation anew in each epoch, as training does; only the check of bits reads alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from autotune.bursts.jobs.feed import Feed
from autotune.knobs.config import TrainConfig
from autotune.recorder.changes import Changes
from autotune.recorder.stream import Stream
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload
from tests.workloads import mistakes

SAMPLES, BATCH, EPOCHS = 8, 4, 3
WORKERS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "workers": {"num_workers": 2, "prefetch_factor": 2},
    "workers that persist": {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True},
}
Draw = Callable[[], Any]


class Augmented(Dataset[Any]):
    """Each sample is its index, and a number drawn by each of the libraries that augmentation draws from."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = (float(torch.rand(())), random.random(), float(np.random.rand()))
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


class Backwards(BatchSampler):
    """Batches that the script makes itself."""

    def __init__(self) -> None:
        super().__init__(range(SAMPLES)[::-1], BATCH, drop_last=False)


def script_stream(changes: dict[str, Any], *, exact: bool = False, **own: Any) -> Stream:
    """What a burst of a script draws from."""
    loader = DataLoader(Augmented(), **own)
    return Stream(loader, Changes({"loader": changes}), 0, seeds_reading=exact)


def epochs_of(draw: Draw, restart: Callable[[], None]) -> Iterator[dict[int, tuple[float, ...]]]:
    """What was drawn for each sample, by epoch; the loader is started again before the last one."""
    for epoch in range(EPOCHS):
        if epoch == EPOCHS - 1:
            restart()
        rows = [row for _ in range(SAMPLES // BATCH) for row in draw().tolist()]
        yield {int(row[0]): tuple(row[1:]) for row in rows}


def of_script(changes: dict[str, Any], **own: Any) -> list[dict[int, tuple[float, ...]]]:
    """Epochs of a burst of a script."""
    torch.manual_seed(0)
    stream = script_stream(changes, **own)
    return list(epochs_of(lambda: next(stream)[1], lambda: stream.restart(stream.position)))


def of_workload(knobs: dict[str, Any]) -> list[dict[int, tuple[float, ...]]]:
    """Epochs of a burst of a ``build()``."""
    torch.manual_seed(0)
    made = mistakes.workload(dataset=Augmented(), baseline=TrainConfig(batch_size=BATCH, **knobs))
    workload = Workload(**{**vars(made), "batch_size": BATCH, "collate_fn": None})
    feed = Feed(workload, Tuned(workload.baseline_config), seed=0)
    return list(epochs_of(lambda: next(feed)[1], lambda: feed.restart(feed.position)))


def require_drawn_anew(epochs: list[dict[int, tuple[float, ...]]]) -> None:
    """No number comes twice for a sample, from whichever library."""
    for index in range(SAMPLES):
        for library in zip(*(epoch[index] for epoch in epochs), strict=True):
            assert len(set(library)) == EPOCHS, f"sample {index}: {library}"


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
@pytest.mark.parametrize("own", ["shuffled", "in order", "by a generator", "in batches of its own"])
def test_a_burst_of_a_script_augments_each_sample_anew_in_each_epoch(workers: dict[str, Any], own: str) -> None:
    """Whatever orders its samples, and also where the loader is started again."""
    how: dict[str, Any] = {"shuffle": own != "in order", "batch_size": BATCH}
    if own == "by a generator":
        how["generator"] = torch.Generator().manual_seed(7)
    if own == "in batches of its own":
        how = {"batch_sampler": Backwards()}
    require_drawn_anew(of_script(workers, **how))


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_a_burst_of_a_workload_augments_each_sample_anew_in_each_epoch(workers: dict[str, Any]) -> None:
    """Also where the loader is started again."""
    require_drawn_anew(of_workload(workers))


@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_the_check_of_bits_reads_alike_whoever_reads(workers: dict[str, Any]) -> None:
    """Otherwise no change of the workers could be compared; it alone reads a sample alike in each epoch."""
    epochs = of_script(workers, exact=True, shuffle=True, batch_size=BATCH)
    assert epochs[0] == epochs[1]
    assert epochs == of_script({}, exact=True, shuffle=True, batch_size=BATCH)
