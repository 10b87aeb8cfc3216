"""Half precision that a result puts around a script's model is for training: the script evaluates as it did."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autotune.recorder.changes import Changes

CHANGES = {"knobs": {"precision": "bf16"}, "changed": ["precision"], "model": {"autocast_forward": "precision"}}
with_gradients = contextlib.nullcontext


@pytest.mark.parametrize(
    ("made_for_training", "mode", "context", "is_half"),
    [
        (True, True, with_gradients, True),
        (True, False, torch.no_grad, False),
        (True, False, torch.inference_mode, False),
        (True, True, torch.no_grad, False),
        (True, False, with_gradients, False),
        (False, False, with_gradients, True),
        (False, False, torch.no_grad, False),
    ],
    ids=[
        "trains", "evaluates", "infers", "evaluates in the mode of training", "evaluates with gradients",
        "trains in the mode of evaluation", "evaluates, having trained in that mode",
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_copy", [False, True], ids=["itself", "copy"])
def test_a_model_trains_in_half_precision_and_evaluates_in_its_own(
    made_for_training: bool, mode: bool, context: Callable[[], Any], is_half: bool, is_copy: bool
) -> None:
    """To the last bit, whether the script switches the mode, the gradients, or both; so does a copy, as an average."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2)).train(made_for_training)
    plain, batch = copy.deepcopy(model), torch.randn(16, 8)
    Changes(CHANGES).on_models([model])
    called = (copy.deepcopy(model) if is_copy else model).train(mode)
    with context():
        found, expected = called(batch), plain(batch)
    assert torch.equal(found, expected) is not is_half
    assert found.dtype is torch.float32


class Net(nn.Module):
    """Uses a name of its module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.layer(x))


def test_a_model_that_trained_in_half_precision_can_be_scripted() -> None:
    """At the end of a training, to be deployed: names in its forward mean what they mean in the model's own module."""
    torch.manual_seed(0)
    model, batch = Net(), torch.randn(16, 8)
    expected = copy.deepcopy(model)(batch)
    Changes(CHANGES).on_models([model])
    assert torch.equal(torch.jit.script(model)(batch), expected)
