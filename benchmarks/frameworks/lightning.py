"""Through Lightning's ``Trainer``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer

from autotune import TrainConfig, Workload
from autotune.integrations.lightning import trainer_kwargs, tuned_datamodule
from benchmarks import digits
from benchmarks.frameworks.common import FrameworkLoop
from benchmarks.plain import make_loader
from benchmarks.stopwatch import OnStep

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader


QUIET = {
    "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False
}  # fmt: skip


class Module(LightningModule):
    """A workload as one writes it for Lightning."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload = workload
        self.net = workload.model

    def training_step(self, batch: Any) -> torch.Tensor:
        """The workload's loss of a counted batch."""
        return self.workload.loss(self.net, batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The workload's own."""
        return self.workload.make_optimizer()


class Data(LightningDataModule):
    """The workload's data."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self) -> DataLoader[Any]:
        """As a user without autotune has it."""
        return self.loader


def build() -> tuple[Module, Data]:
    """The digits as one tunes what Lightning trains."""
    workload = digits.build()
    return Module(workload), Data(make_loader(workload, TrainConfig(batch_size=workload.batch_size)))


class Counting(Callback):
    """Counts, and ends the training when it is enough."""

    def __init__(self, loop: FrameworkLoop, on_step: OnStep) -> None:
        self.loop = loop
        self.on_step = on_step
        self.steps = 0

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        outputs: Any,
        batch: Any,
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """A micro-step is done, and perhaps an optimizer step."""
        self.loop.count(batch[0], outputs["loss"])
        if trainer.global_step > self.steps:
            self.steps = trainer.global_step
            trainer.should_stop = self.on_step(self.loop.take_samples())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """An epoch is done."""
        self.loop.end_epoch()


class Loop(FrameworkLoop):
    """Trains with ``Trainer.fit``."""

    def train(self, on_step: OnStep) -> None:
        """Until `on_step` says that it is enough."""
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # else it lists the accelerators there are
        words = trainer_kwargs(
            self.tuned, max_epochs=-1, gradient_clip_val=self.workload.clip_grad_norm,
            callbacks=Counting(self, on_step), **QUIET,
        )  # fmt: skip
        Trainer(**words).fit(Module(self.workload), datamodule=tuned_datamodule(self.tuned, Data(self.loader)))
