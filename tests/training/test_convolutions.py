"""Convolutions that compute channels-last in a running training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune import TrainConfig
from autotune.torch_settings.layout import convolve_channels_last

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
