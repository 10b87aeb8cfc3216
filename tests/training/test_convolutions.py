"""Convolutions that compute channels-last in a running training."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune import TrainConfig
from autotune.torch_settings.compiled import keep_gradients
from autotune.torch_settings.layout import convolve_channels_last, lay_out
from autotune.torch_settings.wrapping import autocast_forward

LAST = TrainConfig(memory_format="channels_last")


class Net(nn.Module):
    """Two convolutions; returns images and a scalar."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, 8, 3), nn.ConvTranspose2d(8, 8, 3)
        self.seen: list[bool] = []

    def forward(self, images: torch.Tensor, *, recomputes: bool = False) -> Any:
        """Images, and more in a tuple in a dict."""
        hidden = self.first(images).relu()
        self.seen.append(hidden.is_contiguous(memory_format=torch.channels_last))
        out = checkpoint(self.second, hidden, use_reentrant=False) if recomputes else self.second(hidden)
        return {"images": out, "more": (out.mean(), [out.transpose(1, 2)])}


def step(net: Net, images: torch.Tensor, **arguments: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The images that a net returns, and its gradients."""
    net.zero_grad()
    out = net(images, **arguments)
    out["images"].square().mean().backward()
    return out["images"], [weight.grad.clone() for weight in net.parameters() if weight.grad is not None]


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_only_what_convolutions_compute_changes_its_layout(channels: int, recomputes: bool) -> None:
    """Weights, gradients and what the model returns keep theirs, and the values are the same but for rounding."""
    net, images = Net(channels), torch.randn(2, channels, 9, 9)
    plain, gradients = step(net, images, recomputes=recomputes)
    undo = convolve_channels_last(net, LAST)
    out, others = step(net, images, recomputes=recomputes)
    assert net.seen == [False, True]
    assert all(tensor.is_contiguous() for tensor in (out, *net.parameters(), *others))
    assert net(images)["more"][1][0].is_contiguous()
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(others, gradients)
    undo()
    net.seen.clear()
    assert torch.equal(step(net, images, recomputes=recomputes)[0], plain)
    assert net.seen == [False]


def test_gradients_that_the_script_asks_for_are_contiguous() -> None:
    """Of weights, which it may assign and step with a fused optimizer; and of images, as for a penalty."""
    net, images = Net(3), torch.randn(2, 3, 9, 9, requires_grad=True)
    loss = net(images)["images"].square().mean()
    plain = torch.autograd.grad(loss, [images, *net.parameters()])
    undo = convolve_channels_last(net, LAST)
    loss = net(images)["images"].square().mean()
    gradients = torch.autograd.grad(loss, [images, *net.parameters()], create_graph=True)
    assert all(gradient.is_contiguous() for gradient in gradients)
    torch.testing.assert_close(gradients, plain)
    sum(gradient.view(-1).square().sum() for gradient in gradients).backward()
    undo()
    assert not any(weight._backward_hooks for weight in net.parameters())


def test_a_copy_made_meanwhile_computes_as_before_once_it_is_undone() -> None:
    """As a momentum encoder, which trains on."""
    net = Net(3)
    undo = convolve_channels_last(net, LAST)
    other = copy.deepcopy(net)
    undo()
    other(torch.randn(2, 3, 9, 9))
    assert other.seen == [False]


def test_evaluation_and_parts_by_themselves_keep_their_layout() -> None:
    """The script may view what it gets of them."""
    net, images = Net(3), torch.randn(2, 3, 9, 9)
    convolve_channels_last(net, LAST)
    average = copy.deepcopy(net).eval()
    average(images)
    assert average.seen == [False]
    with torch.no_grad():
        net(images)
    assert net.seen == [False]
    assert net.first(images).is_contiguous()


@dataclasses.dataclass(frozen=True)
class Output:
    """What a model returns, in a class of its own."""

    images: torch.Tensor


class Classed(nn.Conv2d):
    """Returns a dataclass."""

    def forward(self, images: torch.Tensor) -> Any:
        """The images."""
        return Output(super().forward(images))


@pytest.mark.parametrize("wrap", [convolve_channels_last, autocast_forward])
def test_dataclasses_that_a_model_returns_are_changed_too(wrap: Any) -> None:
    """The script may view their tensors, and computes its loss in full precision."""
    model = Classed(3, 4, 3)
    wrap(model, LAST.replace(precision="bf16"))
    out = model(torch.randn(2, 3, 9, 9)).images
    assert (out.is_contiguous(), out.dtype) == (True, torch.float32)


def test_weights_that_share_their_data_share_it_in_each_layout() -> None:
    """Also weights that are not one parameter; those of lazy layers and sparse buffers stay."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.LazyConv2d(4, 3), nn.LazyLinear(2))
    model[1].weight.data = model[0].weight.data  # type: ignore[assignment, union-attr]
    model.register_buffer("mask", torch.ones(1, 2, 3, 4).to_sparse())
    undo = lay_out(model, LAST)
    first, second = (part.weight for part in model[:2])
    assert first.is_contiguous(memory_format=torch.channels_last)  # type: ignore[operator]
    assert first.data_ptr() == second.data_ptr()  # type: ignore[operator]
    undo()
    assert first.is_contiguous()  # type: ignore[operator]
    assert first.data_ptr() == second.data_ptr()  # type: ignore[operator]


def test_gradients_of_lazy_layers_are_left_alone() -> None:
    """They have no shape yet."""
    keep_gradients(nn.LazyLinear(2), TrainConfig(compile_mode="reduce-overhead", accumulation_steps=2))
