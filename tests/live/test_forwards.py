"""What the first forward passes show about another layout of images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autotune import TrainConfig
from autotune.recorder.live.forwards import MOST_CALLS
from autotune.recorder.live.models import Models, with_fallback
from autotune.torch_settings.layout import convolve_channels_last


class Net(nn.Module):
    """A convolution, and a layer on what is made of its result."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor] = torch.relu, *parts: nn.Module) -> None:
        super().__init__()
        self.first, self.last, self.parts = nn.Conv2d(1, 8, 3), nn.LazyLinear(4), nn.Sequential(*parts)
        self.between = between

    def forward(self, images: torch.Tensor) -> Any:
        """``(batch, 4)``."""
        return self.last(self.parts(self.between(self.first(images))).flatten(1))


class Doubled(torch.autograd.Function):
    """With a backward pass that views."""

    @staticmethod
    def forward(_: Any, values: torch.Tensor) -> torch.Tensor:
        return values * 2

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.view(-1).mul(2).view(gradient.shape)


@dataclass
class Output:
    """What some models return."""

    scores: torch.Tensor


class Patches(Net):
    """Drops out tokens that are made of images."""

    def __init__(self) -> None:
        super().__init__(torch.relu, nn.Dropout(0.5))

    def forward(self, images: torch.Tensor) -> Any:
        """The same."""
        return self.last(self.parts(self.first(images).flatten(2).transpose(1, 2)).flatten(1))


class Keeping(Net):
    """Keeps its features."""

    def forward(self, images: torch.Tensor) -> Any:
        """The same."""
        self.features = self.first(images)
        return self.last(self.features.flatten(1))


class KeepingInList(Net):
    """Keeps its features elsewhere, without their graph."""

    def forward(self, images: torch.Tensor) -> Any:
        """The same."""
        features = self.first(images)
        self.kept = {"features": [features.detach()]}
        return self.last(features.flatten(1))


class Permuting(Net):
    """Returns images with their channels last, as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Identity()

    def forward(self, images: torch.Tensor) -> Any:
        """``(batch, height, width, 8)``."""
        return self.first(images).permute(0, 2, 3, 1)


class Hooking(Net):
    """Looks at the gradient of its features."""

    def forward(self, images: torch.Tensor) -> Any:
        """The same."""
        features = self.first(images)
        if features.requires_grad:
            features.register_hook(lambda gradient: gradient.view(-1).view(gradient.shape))
        return self.last(features.flatten(1))


class Holding(Net):
    """Holds a constant, and returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(1, 1, 1, 1)

    def forward(self, images: torch.Tensor) -> Any:
        """The same, and more."""
        return super().forward(images - self.mean), None


class Returning(Net):
    """Returns an object."""

    def forward(self, images: torch.Tensor) -> Any:
        """The same, in an object."""
        return {"output": Output(super().forward(images))}


def hooked() -> nn.Module:
    """Whose features a hook sees."""
    net = Net()
    net.first.register_forward_hook(lambda *_: None)
    return net


def masked() -> nn.Module:
    """Whose gradients a hook masks."""
    net = Net()
    net.first.weight.register_hook(lambda gradient: gradient.view(-1).view(gradient.shape))
    return net


def flat_dropout(images: torch.Tensor) -> torch.Tensor:
    """Of a tensor that is no image."""
    return images * functional.dropout(images.flatten(1)).sum()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Net, None),
        (lambda: Net(torch.relu, nn.BatchNorm2d(8), nn.Flatten(), nn.Dropout(0.5)), None),
        (lambda: Net(torch.relu, nn.Dropout2d(0.5)), "draws random numbers"),
        (lambda: Net(functional.dropout), "draws random numbers"),
        (lambda: Net(flat_dropout), "draws random numbers"),  # for all that is seen
        (lambda: Net(Doubled.apply), "a backward pass of its own"),
        (Patches, "draws random numbers"),
        (masked, "hooks of the script"),
        (Holding, None),
        (Keeping, "keeps what it computes"),
        (KeepingInList, "keeps what it computes"),
        (Permuting, "not contiguous"),
        (Hooking, "see gradients"),
        (Returning, "returns a dict"),
        (hooked, "hooks of the script"),
    ],
)
def test_what_speaks_against_another_layout(make: Callable[[], nn.Module], reason: str | None) -> None:
    """Code that is not torch's must not see other strides, and random numbers must keep their places."""
    net = make()
    models = Models()
    try:
        for _ in range(MOST_CALLS):
            net.eval()
            net(torch.randn(4, 1, 8, 8))  # evaluation shows nothing
            net.train()
            returned = net(torch.randn(4, 1, 8, 8))
        assert returned is not None
    finally:
        models.end()
    why = models.why_not([net]).get("memory_format")
    assert why is None if reason is None else reason in (why or "")


def test_each_model_is_looked_at() -> None:
    """However often another one was called before."""
    often, seldom, never = Net(), Net(torch.relu, nn.Dropout2d(0.5)), Net()
    models = Models()
    try:
        for net in [often] * (MOST_CALLS + 1) + [seldom]:
            net(torch.randn(4, 1, 8, 8))
    finally:
        models.end()
    assert "draws random numbers" in models.why_not([often, seldom])["memory_format"]
    assert "memory_format" in models.why_not([never])


def within(transform: Any, call: Any, values: torch.Tensor) -> Any:
    """A call of a model within a transform."""
    return transform(lambda one: call(one).sum())(values)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_model_that_torch_func_transforms_is_left_as_it_is(transform: Any, is_inside: bool) -> None:
    """Whether the script calls it so, or it calls its own parts so. The reason is one that you can read."""
    part, models = nn.Linear(8, 4), Models()
    model = nn.Sequential(part)
    if is_inside:
        model.forward = lambda values: within(transform, part, values)
    call = model if is_inside else lambda values: within(transform, model, values)
    call(torch.randn(2, 8))
    models.end()
    assert models.why_not([model])["precision"] == "torch.func transforms the model"


@pytest.mark.parametrize("teacher", [nn.Linear(8, 4), nn.Sequential(nn.Linear(8, 4))])
def test_a_teacher_that_torch_func_transforms_leaves_the_model_free(teacher: nn.Module) -> None:
    """It does not train, and nor do its parts."""
    net, models = nn.Sequential(nn.Linear(8, 4)), Models()
    net(torch.randn(2, 8))
    with torch.no_grad():
        torch.func.vmap(teacher.eval())(torch.randn(3, 2, 8))
    models.end()
    assert models.why_not([net]) == {}


def test_a_model_without_convolutions_has_no_layout_to_leave() -> None:
    """Nothing is said of it, though it draws random numbers."""
    net, models = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)), Models()
    assert models.why_not([]).keys() == {"precision", "compile_mode"}
    net(torch.randn(4, 3, 8))
    models.end()
    assert models.why_not([net]) == {}


def test_a_layout_of_the_scripts_own_stays() -> None:
    """There is no other one to try."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3)).to(memory_format=torch.channels_last)
    models = Models()
    net(torch.randn(4, 3, 8, 8))
    models.end()
    assert "lays its model out itself" in models.why_not([net])["memory_format"]


class Viewing(nn.Sequential):
    """Views what its convolution returns."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A vector for each image."""
        return self[0](images).view(len(images), -1)


def test_a_part_that_fails_when_it_is_called_by_itself_is_called_again() -> None:
    """As a perceptual loss calls features, before any other call of the model; the error goes no further."""
    model, images = nn.Sequential(Viewing(nn.Conv2d(1, 8, 3)), nn.Linear(288, 2)), torch.randn(2, 1, 8, 8)
    expected, errors = model[0](images), []
    undo = convolve_channels_last(model, TrainConfig(memory_format="channels_last"))

    def fall_back(error: Exception) -> None:
        errors.append(error)
        end()
        undo()

    end = with_fallback(model, fall_back)
    assert torch.equal(model[0](images), expected)
    assert len(errors) == 1
    assert not any("forward" in vars(part) for part in model.modules())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpointing_computes_again_is_no_failure(use_reentrant: bool) -> None:
    """It ends such a call by an exception of its own."""
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    model = nn.Sequential(block, nn.Conv2d(8, 4, 3))
    failures: list[Exception] = []
    with_fallback(model, failures.append)
    images = torch.randn(2, 3, 9, 9, requires_grad=True)
    model[1](checkpoint(block, images, use_reentrant=use_reentrant)).sum().backward()
    assert not failures
    assert images.grad is not None
