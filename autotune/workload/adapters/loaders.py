"""Takes a DataLoader apart, so that one with other settings can be made from the same parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, default_collate

from autotune.errors import WorkloadError
from autotune.knobs import TrainConfig, arguments_as_knobs
from autotune.torch_settings.naming import arguments_of
from autotune.workload.user_errors import described


@dataclass(frozen=True)
class LoaderParts:
    """The parts of a DataLoader.

    Attributes:
        loader: The loader itself, without a framework's wrapper.
        batch_size: None when the loader does not batch single samples.
        batches: The user's own batch sampler, if any.
        sampler: Draws single samples; None for an iterable dataset.
        drop_last: Whether an incomplete batch is dropped.
    """

    loader: DataLoader[Any]
    batch_size: int | None
    batches: Any
    sampler: Any
    drop_last: bool

    @property
    def shuffles(self) -> bool:
        """Whether every sample is drawn once, in random order, as with ``shuffle=True``."""
        sampler = self.sampler
        whole = isinstance(sampler, RandomSampler) and not sampler.replacement
        return whole and sampler.num_samples == len(sampler.data_source)

    @property
    def settings(self) -> dict[str, Any]:
        """The knobs of `TrainConfig` that the loader has, under their names."""
        given = arguments_as_knobs(arguments_of(self.loader, DataLoader), "dataloader_argument")
        return given | {"batch_size": self.batch_size}  # the loader's own is None under a batch sampler


def read_loader(loader: DataLoader[Any]) -> LoaderParts:
    """The parts of a loader, which Accelerate may have prepared."""
    loader = getattr(loader, "base_dataloader", loader)
    batches: Any = loader.batch_sampler
    while type(batches).__name__ == "BatchSamplerShard":  # Accelerate's, which wraps another sampler
        batches = batches.batch_sampler
    draws = not isinstance(loader.dataset, IterableDataset)
    if type(batches) is BatchSampler:  # torch's own: made from batch_size and drop_last, or equal to one
        return LoaderParts(loader, batches.batch_size, None, batches.sampler if draws else None, batches.drop_last)
    return LoaderParts(loader, None, batches, loader.sampler if draws and batches is None else None, drop_last=False)


def require_loader(loader: object, target: str, source: str) -> LoaderParts:
    """The parts of a loader whose batch size can be varied.

    Raises:
        WorkloadError: The loader is no DataLoader, or makes its batches itself.
    """
    if not isinstance(loader, DataLoader):
        raise WorkloadError(
            f"{target}: expected one torch DataLoader from {source}, got {described(loader)}; "
            "combine the data in one dataset"
        )
    parts = read_loader(loader)
    if parts.batch_size is None:
        got = "batch_size=None" if parts.batches is None else described(parts.batches)
        raise WorkloadError(
            f"{target}: expected a DataLoader with a batch_size, which autotune varies, from {source}, "
            f"got one with {got}; give the DataLoader batch_size= and a sampler of single samples"
        )
    return parts


def workload_parts(parts: LoaderParts) -> dict[str, Any]:
    """The fields of a Workload that a loader decides, except the baseline."""
    loader = parts.loader
    return {
        "dataset": loader.dataset,
        "collate_fn": None if loader.collate_fn is default_collate else loader.collate_fn,
        "sampler": None if parts.shuffles else parts.sampler,
        "worker_init_fn": loader.worker_init_fn,
    }


def baseline(parts: LoaderParts, **knobs: Any) -> TrainConfig:
    """The baseline: the loader's settings, and the other knobs.

    Raises:
        ConfigError: A value is out of range.
    """
    pinned = parts.loader.pin_memory and torch.accelerator.is_available()  # else torch pins nothing
    return TrainConfig().replace(**{**parts.settings, "pin_memory": pinned, **knobs})


def loader_notes(parts: LoaderParts) -> list[str]:
    """Notes on what a loader does and bursts do not."""
    loader, notes = parts.loader, []
    if parts.drop_last:
        notes.append("drop_last=True of the train loader: a last incomplete batch is trained on")
    if type(loader).__iter__ is not DataLoader.__iter__:
        notes.append(f"the iteration of {type(loader).__name__}: a plain DataLoader reads its dataset")
    return notes
