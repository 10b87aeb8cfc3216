"""What the loops of all frameworks share."""

from __future__ import annotations

import abc

import torch
from torch.utils.data import IterableDataset

from autotune import TrainConfig, Tuned, Workload
from autotune.errors import WorkloadError
from benchmarks.plain import make_loader
from benchmarks.stopwatch import OnStep


class FrameworkLoop(abc.ABC):
    """Trains a workload through a framework; all settings come by way of autotune's integration.

    Args:
        workload: Freshly built; its model is changed in place.
        config: How to train it.
        device: ``cpu``, ``cuda`` or ``mps``.

    Attributes:
        loader: The workload's data as a user without autotune has it: PyTorch's defaults. The integration makes the
            tuned one of it. Its batches are ``(samples, batch)``.
        epochs: Whole epochs so far.
        batches: Micro-batches so far.
        last_loss: Of the last micro-batch.
    """

    def __init__(self, workload: Workload, config: TrainConfig, device: str) -> None:
        self.workload = workload
        self.config = config
        self.tuned = Tuned(config, device=device)
        self.loader = make_loader(workload, TrainConfig())
        self.epochs = 0
        self.batches = 0
        self.last_loss = torch.tensor(float("nan"))
        self._samples = 0
        self._batches_before = 0
        workload.model.train()

    @abc.abstractmethod
    def train(self, on_step: OnStep) -> None:
        """Trains, epoch after epoch, until `on_step` says that it is enough."""

    def count(self, samples: int, loss: torch.Tensor) -> None:
        """One micro-step is done."""
        self._samples += samples
        self.batches += 1
        self.last_loss = loss.detach()

    def take_samples(self) -> int:
        """The samples that were counted since the last call: those of an optimizer step."""
        samples, self._samples = self._samples, 0
        return samples

    def end_epoch(self) -> None:
        """One epoch is done.

        Raises:
            RuntimeError: When it held no batch.
        """
        if self.batches == self._batches_before:
            raise RuntimeError("the loader yields no batch")
        self._batches_before = self.batches
        self.epochs += 1

    def synchronize(self) -> None:
        """Waits until the device has done all that it was given."""
        if self.tuned.device.type != "cpu":
            torch.accelerator.synchronize(self.tuned.device)


def refuse_iterable(workload: Workload, framework: str) -> None:
    """Where Accelerate loads the data, that of an iterable dataset cannot be counted.

    Raises:
        WorkloadError: When the dataset is iterable.
    """
    if isinstance(workload.dataset, IterableDataset):
        raise WorkloadError(
            f"{framework} takes an iterable dataset's batches apart, which leaves no count of their samples, but the "
            "dataset of this workload is iterable; use --framework lightning,fabric"
        )
