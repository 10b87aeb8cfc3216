"""One epoch with Accelerate, in a loop of one's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from autotune.training.tuned import Tuned

pytest.importorskip("accelerate")

from accelerate import Accelerator

from autotune.integrations.accelerate import accelerator_kwargs, prepare
from tests.integrations.models import OwnLoop, forget_accelerate, images, loss_fn, remarks, uneven

NAME, TOLD, SAMPLER = "Accelerate", (uneven("Accelerate"),), RandomSampler
OWNER, words, FP32 = Accelerator, accelerator_kwargs, ("mixed_precision", "no")


class Run(OwnLoop):
    """One epoch, which begins with no state of another one and leaves none."""

    def __init__(self, setting: Tuned, hooked: bool = True, **yours: Any) -> None:
        forget_accelerate()
        super().__init__(hooked)
        with remarks() as self.told:
            accelerator = Accelerator(**accelerator_kwargs(setting, **yours))
            self.model, optimizer, self.loader, self.scheduler = prepare(
                setting, accelerator, self.net, self.optimizer, DataLoader(images(), shuffle=True),
                torch.optim.lr_scheduler.ConstantLR(self.optimizer),
            )  # fmt: skip
            for batch in self.loader:
                with accelerator.accumulate(self.model):
                    accelerator.backward(loss_fn(self.model, batch))
                    optimizer.step()
                    self.scheduler.step()
                    optimizer.zero_grad()
        forget_accelerate()
        self.steps = self.counted.count
