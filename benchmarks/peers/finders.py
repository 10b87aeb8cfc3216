"""Batch finders: they look for the largest batch that fits, and leave all else as it is."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from autotune import TrainConfig, Workload
from autotune.workload.target import load_workload
from benchmarks.plain import Loop, make_optimizer, set_process

ACCELERATE_STARTS_AT = 128
"""Its own default; the person who calls it chooses, and without an out-of-memory error that is the answer."""
TRIED_STEPS = 3


def device_name() -> Literal["cpu", "cuda"]:
    """``cuda`` where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def lightning(target: str, _seconds: float, baseline: TrainConfig, tell: Callable[[TrainConfig], None]) -> None:
    """Lightning's ``Tuner.scale_batch_size``: doubles until it fails; it has no budget."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.tuner.tuning import Tuner

    class Module(LightningModule):
        """A workload as one writes it for Lightning."""

        def __init__(self, workload: Workload) -> None:
            super().__init__()
            self.workload = workload
            self.net = workload.model
            self.batch_size = baseline.batch_size
            self.tried: int | None = None

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            return self.workload.loss(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self.workload, "default")

        def train_dataloader(self) -> DataLoader[Any]:
            if self.tried is not None and self.batch_size > self.tried:  # it goes up after a success only
                tell(baseline.replace(batch_size=self.tried))
            self.tried = self.batch_size
            return DataLoader(
                self.workload.dataset, batch_size=self.batch_size, shuffle=True, num_workers=baseline.num_workers,
                collate_fn=self.workload.collate_fn, worker_init_fn=self.workload.worker_init_fn,
            )  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="gpu" if device_name() == "cuda" else "cpu", max_epochs=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        found = Tuner(trainer).scale_batch_size(Module(load_workload(target)))
    if found is not None:
        tell(baseline.replace(batch_size=found))


def accelerate(target: str, _seconds: float, baseline: TrainConfig, tell: Callable[[TrainConfig], None]) -> None:
    """Accelerate's ``find_executable_batch_size``: takes a tenth off until it fits; it has no budget."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=ACCELERATE_STARTS_AT)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        config = baseline.replace(batch_size=batch_size)
        set_process(config, torch.device(device_name()))
        loop = Loop(load_workload(target), config, device_name())
        for _ in itertools.islice(loop.steps(), TRIED_STEPS):
            pass
        return batch_size

    tell(baseline.replace(batch_size=train()))
