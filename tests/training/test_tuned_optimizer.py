"""Switching the optimizer to another implementation: it trains alike, with its state and its checkpoints."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, cast

import pytest
import torch
from torch import nn

from autotune.errors import ConfigError
from autotune.knobs.config import TrainConfig
from autotune.timing.loop import training_facts
from autotune.training.tuned import Tuned


def tuned(**knobs: Any) -> Tuned:
    """The default config with some knobs changed, on the CPU."""
    return Tuned(TrainConfig(**knobs))


def make_trained(kind: type[torch.optim.Optimizer], **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small convolution and its optimizer, from the same weights each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    return model, kind(model.parameters(), lr=0.05, **settings)  # type: ignore[call-arg]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> torch.Tensor:
    """Some steps on fixed data; returns all weights."""
    images = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


OPTIMIZERS = [
    (torch.optim.AdamW, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.Adagrad, {}),
]


@pytest.mark.parametrize("implementation", ["foreach", "fused"])
@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_an_optimizer_is_switched_and_trains_alike(
    kind: type[torch.optim.Optimizer], settings: dict[str, Any], implementation: Any, steps_before: int
) -> None:
    """The form is set on each group, before state exists or after; the weights come out as without."""
    expected = train(*make_trained(kind, **settings), steps_before + 3)
    model, optimizer = make_trained(kind, **settings)
    train(model, optimizer, steps_before)
    tuned(optimizer_impl=implementation).prepare(model, optimizer)
    other = {"foreach": "fused", "fused": "foreach"}[implementation]
    assert all(group[implementation] and not group.get(other) for group in optimizer.param_groups)
    torch.testing.assert_close(train(model, optimizer, 3), expected)


def test_every_group_is_switched_and_keeps_its_own_settings() -> None:
    """Groups with learning rates of their own stay so."""
    model, _ = make_trained(torch.optim.SGD)
    optimizer = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}])
    tuned(optimizer_impl="foreach").prepare(model, optimizer)
    assert [(group["lr"], group["foreach"]) for group in optimizer.param_groups] == [(0.1, True), (0.001, True)]


def test_the_default_form_leaves_the_users_choice() -> None:
    """An optimizer that was made fused stays fused."""
    model, optimizer = make_trained(torch.optim.AdamW, fused=True)
    tuned().prepare(model, optimizer)
    assert optimizer.param_groups[0]["fused"]


@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_learning_rate_schedule_goes_on(steps_before: int) -> None:
    """A schedule that was made before still sets the rate with which the optimizer steps."""
    model, optimizer = make_trained(torch.optim.AdamW)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    train(model, optimizer, steps_before)
    tuned(optimizer_impl="fused").prepare(model, optimizer)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.025


@pytest.mark.parametrize("implementation", ["default", "foreach", "fused"])
def test_state_and_gradients_follow_the_layout_of_the_weights(implementation: Any) -> None:
    """Momenta and gradients that were made before the user laid the weights out still belong to the same weights."""
    expected = train(*make_trained(torch.optim.AdamW), 5)
    model, optimizer = make_trained(torch.optim.AdamW)
    train(model, optimizer, 2)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    tuned(optimizer_impl=implementation).prepare(model, optimizer)
    assert not model[0].weight.is_contiguous()  # type: ignore[index, union-attr, operator]
    with_old_strides = [weight.register_post_accumulate_grad_hook(contiguous) for weight in model.parameters()]  # type: ignore[no-untyped-call]
    torch.testing.assert_close(train(model, optimizer, 3), expected)
    assert len(with_old_strides) == 4


def contiguous(weight: torch.Tensor) -> None:
    """As a gradient lies in DDP's bucket, which was made before the weights were laid out."""
    weight.grad = cast("torch.Tensor", weight.grad).contiguous()


@pytest.mark.parametrize("laid_out", [False, True], ids=["contiguous", "laid out by the user"])
def test_a_checkpoint_of_another_config_is_taken_up(laid_out: bool) -> None:
    """Its state takes the layout of the weights, and its groups the tuned form, when it is loaded after `prepare`."""
    expected = train(*make_trained(torch.optim.AdamW), 5)
    model, optimizer = make_trained(torch.optim.AdamW)
    train(model, optimizer, 2)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    model, optimizer = make_trained(torch.optim.AdamW)
    if laid_out:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    tuned(optimizer_impl="fused", memory_format="channels_last").prepare(model, optimizer)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["fused"]
    torch.testing.assert_close(train(model, optimizer, 3), expected)


def test_an_optimizer_without_the_form_is_told() -> None:
    """What was asked for, who lacks it, and what to do."""
    model, optimizer = make_trained(torch.optim.RMSprop)
    with pytest.raises(ConfigError, match=r"optimizer_impl=fused .* RMSprop has no such form; use .*=default"):
        tuned(optimizer_impl="fused").prepare(model, optimizer)


def test_a_fused_optimizer_made_foreach_unscales_first() -> None:
    """Only the fused form divides by the scale itself: left to it, the foreach form would train on scaled gradients."""
    model, optimizer = make_trained(torch.optim.AdamW, fused=True)
    setting = tuned(precision="fp16", optimizer_impl="foreach")
    setting.prepare(model, optimizer)
    scaler = setting.scaler(init_scale=2.0**10)
    scaler.scale(model(torch.ones(1, 3, 4, 4)).sum()).backward()
    scaled = model[2].bias.grad.clone()
    scaler.step(optimizer)
    torch.testing.assert_close(model[2].bias.grad, scaled / 2**10)


class OwnStep(torch.optim.AdamW):
    """Steps in a way of its own."""

    def step(self, closure: Any = None) -> Any:
        """Whatever it does."""
        return super().step(closure)


class Around(torch.optim.Optimizer):
    """Steps by another optimizer, whose settings it shows as its own."""

    def __init__(self, weights: Any, lr: float) -> None:
        self.base = torch.optim.SGD(weights, lr)
        super().__init__(self.base.param_groups, dict(self.base.defaults))

    def step(self, closure: Any = None) -> Any:
        """The other one's."""
        return self.base.step(closure)


class OwnDefaults(torch.optim.AdamW):
    """Steps as torch does."""


class FirstOfItsKind(torch.optim.Adadelta):
    """Steps as torch does; torch hangs its hooks on this class, since no other Adadelta is made before."""


ADAM: Any = torch.optim.Adam


@pytest.mark.parametrize(
    ("make", "dtype", "forms"),
    [
        (OwnStep, torch.float32, []),
        (lambda weights: Around(weights, 0.1), torch.float32, []),
        (OwnDefaults, torch.float32, ["foreach", "fused"]),
        (FirstOfItsKind, torch.float32, ["foreach"]),
        (lambda weights: ADAM(weights, lr=torch.tensor(0.1)), torch.float32, ["fused"]),
        (lambda weights: ADAM([{"params": weights, "lr": torch.tensor(0.1)}]), torch.float32, ["fused"]),
        (lambda weights: ADAM(weights, differentiable=True), torch.float32, []),
        (lambda weights: torch.optim.SGD(weights, 0.1, differentiable=True), torch.float32, []),
        (ADAM, torch.complex64, ["foreach"]),
        (torch.optim.RMSprop, torch.float32, ["foreach"]),
        (torch.optim.LBFGS, torch.float32, []),
    ],
    ids=["own step", "around another", "derived", "first derived", "tensor", "tensor of a group", "differentiable",
         "differentiable SGD", "complex", "without fused", "without either"],
)  # fmt: skip
def test_forms_that_cannot_step_are_refused(make: Any, dtype: torch.dtype, forms: list[str]) -> None:
    """Before training, rather than at its first step; looks offer the same forms."""
    model = nn.ParameterList([nn.Parameter(torch.ones(2, dtype=dtype))])
    looked_at = training_facts([model], [make(list(model.parameters()))], [], may_fuse=True)
    switched = []
    for form in ("foreach", "fused"):
        with contextlib.suppress(ConfigError):
            tuned(optimizer_impl=form).prepare(model, make(list(model.parameters())))
            switched.append(form)
    assert switched == looked_at["optimizer_impls"] == forms
