"""The layout of images on their way into a model that a framework trains."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autotune import TrainConfig, Tuned
from autotune.integrations.common import lay_out_inputs


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_number_of_channels_keep_the_layout_through_the_model(channels: int) -> None:
    """With one channel both layouts lie in memory alike, and only the strides tell the next layer which to use."""
    tuned = Tuned(TrainConfig(memory_format="channels_last"))
    model, _ = tuned.prepare(nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Conv2d(4, 8, 3)))
    lay_out_inputs(tuned, model)
    middle: list[torch.Tensor] = []
    model[0].register_forward_hook(lambda _module, _inputs, output: middle.append(output))
    model(torch.rand(2, channels, 8, 8))
    assert middle[0].is_contiguous(memory_format=torch.channels_last)
