"""One epoch with Lightning, by a module that logs, as modules do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler

from autotune.training.tuned import Tuned

pytest.importorskip("lightning")

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from autotune.integrations.lightning import trainer_kwargs, tuned_datamodule
from tests.integrations.models import Net, Seen, Steps, images, loss_fn, remarks, uneven

NAME, TOLD, SAMPLER = "Lightning", (uneven("Lightning"),), SequentialSampler
OWNER, words, FP32 = Trainer, trainer_kwargs, ("precision", "32-true")


class Module(LightningModule):
    """The network, its loss and an optimizer."""

    def __init__(self, optimizer: Any = torch.optim.AdamW) -> None:
        super().__init__()
        self.net = Net()
        self.seen = Seen(self.net.conv)
        self.make_optimizer = optimizer

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = loss_fn(self.net, batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = self.make_optimizer(self.parameters(), lr=0.01)
        self.steps = Steps(optimizer)
        return optimizer


class Data(LightningDataModule):
    """Loads image by image, in order."""

    def train_dataloader(self) -> Any:
        return DataLoader(images())


class Run:
    """One epoch, on the tuned loader unless data is given."""

    def __init__(self, setting: Tuned, module: Any = None, data: Any = None, **yours: Any) -> None:
        self.module: Any = module or Module()
        quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
        with remarks() as self.told:
            args = trainer_kwargs(setting, max_epochs=1, enable_progress_bar=False, **quiet, **yours)
            self.trainer = Trainer(**args)
            self.trainer.fit(self.module, datamodule=data or tuned_datamodule(setting, Data()))
        self.loader: Any = self.trainer.train_dataloader
        self.optimizer = self.trainer.optimizers[0]
        self.callback: Any = next(one for one in self.trainer.callbacks if type(one).__name__ == "TunedCallback")  # type: ignore[attr-defined]

    @property
    def seen(self) -> Seen:
        """What the convolution met."""
        return self.module.seen

    @property
    def conv(self) -> torch.nn.Module:
        """The first convolution."""
        return self.module.net.conv

    @property
    def steps(self) -> int:
        """Steps of the optimizer."""
        return self.module.steps.count
