"""A training is resumed in another layout: a fused optimizer would pair weights and moments wrongly, in silence."""

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


def prepared_alone(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """The optimizer is not given."""
    SETTING.prepare(model)
    return model, optimizer


def prepared_then_loaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """The state comes from a checkpoint, after all is laid out."""
    state = copy.deepcopy(optimizer.state_dict())
    SETTING.prepare(model, optimizer)
    optimizer.load_state_dict(state)
    return model, optimizer


def made_anew_then_loaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> Resumed:
    """So does the optimizer."""
    state = copy.deepcopy(optimizer.state_dict())
    SETTING.prepare(model)
    optimizer = fused(model)
    optimizer.load_state_dict(state)
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
    Changes({"knobs": {"memory_format": "channels_last"}, "model": {"lay_out": "memory_format"}}).on_models([model])
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
        prepared, prepared_alone, prepared_then_loaded, made_anew_then_loaded, stepped_then_loaded, recorded, fabric,
        accelerate, transformers, lightning,
    ],
)  # fmt: skip
def test_a_fused_optimizer_goes_on_as_without_the_switch(path: Path) -> None:
    """Moments and gradients are laid out with the weights, whichever comes first."""
    expected = losses(*half_trained())
    model, optimizer = path(*half_trained())
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr, operator]
    assert losses(model, optimizer) == pytest.approx(expected, abs=NEAR)


@pytest.mark.parametrize("steps_again", [False, True], ids=["at once", "after a step"])
def test_its_checkpoint_is_that_of_a_training_without_the_switch(steps_again: bool) -> None:
    """Moments are saved as they lay before: a fused optimizer that nobody watches takes them as they are."""
    plain, switched = half_trained(), prepared(*half_trained())
    for model, optimizer in (plain, switched):
        optimizer.zero_grad()
        if steps_again:
            losses(model, optimizer)
    (_, saved), (model, _) = ([copy.deepcopy(one.state_dict()) for one in both] for both in (switched, plain))
    expected = plain[1].state_dict()["state"]
    for number, state in saved["state"].items():
        assert {name: value.stride() for name, value in state.items()} == {
            name: value.stride() for name, value in expected[number].items()
        }
    resumed = Net()
    optimizer = fused(resumed)
    resumed.load_state_dict(model)
    optimizer.load_state_dict(saved)
    assert losses(resumed, optimizer) == pytest.approx(losses(*plain), abs=NEAR)
