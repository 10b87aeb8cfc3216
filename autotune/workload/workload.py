"""The Workload that the user trains.

`build()` runs in the process of every burst, so nothing is pickled. Defining a Workload does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.knobs import TrainConfig

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset, Sampler


@dataclass(frozen=True)
class Workload:
    """A model with its data and loss, as `build()` returns it.

    Attributes:
        model: An ``nn.Module`` on the CPU; autotune moves it to the device.
        dataset: A map-style or iterable dataset.
        loss: ``(model, batch) -> scalar Tensor``; the batch is already on the device.
        optimizer: ``(params) -> Optimizer``; AdamW when None. Its state counts towards the memory.
        batch_size: Micro-batch that you train with today.
        accumulation_steps: Micro-steps per optimizer step that you train with today.
        baseline: The whole config that you train with today, instead of the two above.
        collate_fn: As for ``DataLoader``.
        sampler: As for ``DataLoader``; without one a map-style dataset is shuffled.
        worker_init_fn: As for ``DataLoader``.
        clip_grad_norm: Limit for gradient clipping, which bursts apply too, since it costs time.
        keeps_gradients: Whether a step's gradients live until the end of the next forward pass, as where ``zero_grad``
            comes right before ``backward``. Otherwise they are dropped after the step. This decides the peak memory,
            and how often memory returns to the system.
        sample_size: ``sample -> relative size``, for variable-length data.
        name: The displayed name; the target's name when None.
        evaluation: A map-style or iterable dataset for evaluation, for which ``--evaluation`` finds a batch size; the
            training data when None.
        notes: What your own training does and bursts do not; filled in by adapters of frameworks.
    """

    model: nn.Module
    dataset: Dataset[Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    optimizer: Callable[[Any], Optimizer] | None = None
    batch_size: int = 32
    accumulation_steps: int = 1
    baseline: TrainConfig | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    sampler: Sampler[Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    clip_grad_norm: float | None = None
    keeps_gradients: bool = False
    sample_size: Callable[[Any], float] | None = None
    name: str | None = None
    evaluation: Dataset[Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def baseline_config(self) -> TrainConfig:
        """The config that the user trains with today.

        Raises:
            ConfigError: `batch_size` or `accumulation_steps` is out of range.
        """
        if self.baseline is not None:
            return self.baseline
        return TrainConfig().replace(batch_size=self.batch_size, accumulation_steps=self.accumulation_steps)

    def make_optimizer(self) -> Optimizer:
        """A fresh optimizer over the model's trainable parameters."""
        import torch

        params = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return self.optimizer(params) if self.optimizer is not None else torch.optim.AdamW(params)


def indices_of(workload: Workload) -> Iterable[int]:
    """The indices of a map-style dataset, in the order in which a loader without shuffling draws them."""
    dataset: Any = workload.dataset
    return range(len(dataset)) if workload.sampler is None else workload.sampler


def draw_samples(workload: Workload) -> Iterator[Any]:
    """Yields the samples as the loader would draw them."""
    from torch.utils.data import IterableDataset

    dataset: Any = workload.dataset
    if isinstance(dataset, IterableDataset):
        yield from dataset
    else:
        yield from (dataset[index] for index in indices_of(workload))
