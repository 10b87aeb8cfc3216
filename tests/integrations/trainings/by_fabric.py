"""One epoch with Lightning Fabric, in a loop of one's own."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader, RandomSampler

from autotune.training.tuned import Tuned

pytest.importorskip("lightning")

from lightning.fabric import Fabric

from autotune.integrations.fabric import fabric_kwargs, setup
from tests.integrations.models import OwnLoop, images, loss_fn, remarks

NAME, SAMPLER = "Fabric", RandomSampler
TOLD = (
    "Fabric does not apply what was tuned: accumulation_steps=3 "
    "(it leaves that to your loop: for micro_batches in tuned.accumulate(loader))",
)
OWNER, words, FP32 = Fabric, fabric_kwargs, ("precision", "32-true")


class Run(OwnLoop):
    """One epoch."""

    def __init__(self, setting: Tuned, hooked: bool = True, **yours: Any) -> None:
        super().__init__(hooked)
        with remarks() as self.told:
            fabric = Fabric(**fabric_kwargs(setting, **yours))
            loader = DataLoader(images(), shuffle=True)
            model, optimizer, self.loader = setup(setting, fabric, self.net, self.optimizer, loader)
            for micro_batches in setting.accumulate(self.loader):
                for batch in micro_batches:
                    fabric.backward(loss_fn(model, batch) / len(micro_batches))
                optimizer.step()
                optimizer.zero_grad()
        self.steps = self.counted.count
