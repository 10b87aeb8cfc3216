"""A training is resumed with convolutions in another layout: weights, gradients and moments stay as they are."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune.recorder.changes import Changes
from tests.integrations.models import Net, forget_accelerate, images, loss_fn, tuned

Resumed = tuple[nn.Module, torch.optim.Optimizer]
Path = Callable[[nn.Module, torch.optim.Optimizer], Resumed]

SETTING = tuned(memory_format="channels_last", batch_size=8)
STEPS = 3
NEAR = 1e-4
"""Losses that differ only in the order in which convolutions sum; wrongly paired moments change them by 1e-2."""


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Accelerate keeps its state for the whole process."""
    forget_accelerate()
    yield
    forget_accelerate()


def fused(model: nn.Module) -> torch.optim.Optimizer:
    """The script's own optimizer."""
    return torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)


def batches() -> DataLoader[Any]:
    """The same each time."""
    return DataLoader(images(8 * STEPS), batch_size=8)


def losses(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """The losses of some steps; gradients that are there are added to."""
    values = []
    for batch in batches():
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.item())
    return values


def half_trained() -> Resumed:
    """With moments of a few steps, and the gradients of a micro-batch that no step has followed yet."""
    torch.manual_seed(0)
    model = Net()
    optimizer = fused(model)
    losses(model, optimizer)
    loss_fn(model, next(iter(batches()))).backward()
    return model, optimizer


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    """A copy of each."""
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def put_back(model: nn.Module, gradients: list[torch.Tensor]) -> None:
    """As if they had just been computed."""
    for weight, gradient in zip(model.parameters(), gradients, strict=True):
        weight.grad = torch.empty_like(weight).copy_(gradient)


def prepared(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """As a person does it who loads the state before."""
    SETTING.prepare(model, optimizer)
    return model, optimizer


def stepped_then_loaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """The checkpoint is loaded in the midst of training."""
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    gradients = gradients_of(model)
    SETTING.prepare(model)
    losses(model, optimizer)  # of another checkpoint, say
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    put_back(model, gradients)
    return model, optimizer


def recorded(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """As the recorder does it under `launch` and `apply`."""
    Changes(
        {"knobs": {"memory_format": "channels_last"}, "model": {"convolve_channels_last": "memory_format"}}
    ).on_models([model])
    return model, optimizer


def fabric(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """By its setup."""
    pytest.importorskip("lightning")
    from lightning.fabric import Fabric

    from autotune.integrations.fabric import fabric_kwargs, setup

    setup(SETTING, Fabric(**fabric_kwargs(SETTING)), model, optimizer, batches())
    return model, optimizer


def accelerate(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """By its prepare."""
    pytest.importorskip("accelerate")
    from accelerate import Accelerator

    from autotune.integrations.accelerate import accelerator_kwargs, prepare

    prepare(SETTING, Accelerator(**accelerator_kwargs(SETTING)), model, optimizer, batches())
    return model, optimizer


def transformers(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """By the callback, which is called when all is made."""
    pytest.importorskip("transformers")
    from autotune.integrations.transformers import _callback_class

    args = types.SimpleNamespace(torch_compile=False, device=torch.device("cpu"), gradient_accumulation_steps=1)
    _callback_class()(SETTING).on_train_begin(args, None, None, model=model, optimizer=optimizer)
    return model, optimizer


def lightning(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """By the callback, in a training of no step."""
    pytest.importorskip("lightning")
    from lightning.pytorch import LightningModule, Trainer

    from autotune.integrations.lightning import trainer_kwargs

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return loss_fn(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    gradients = gradients_of(model)
    Trainer(**trainer_kwargs(SETTING, max_steps=0, enable_progress_bar=False, **quiet)).fit(Module(), batches())
    put_back(model, gradients)  # which Lightning drops
    return model, optimizer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "path",
    [
        prepared, stepped_then_loaded, recorded, fabric, accelerate, transformers, lightning,
    ],
)  # fmt: skip
def test_a_fused_optimizer_goes_on_as_without_the_switch(path: Path) -> None:
    """And its checkpoints are contiguous, as safetensors needs them."""
    expected = losses(*half_trained())
    model, optimizer = path(*half_trained())
    assert losses(model, optimizer) == pytest.approx(expected, abs=NEAR)
    assert all(weight.is_contiguous() for weight in model.state_dict().values())
    assert all(value.is_contiguous() for state in optimizer.state.values() for value in state.values())
