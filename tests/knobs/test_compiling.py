"""Gradients under CUDA graphs: the graph's memory is overwritten by the next micro-batch, so they must leave it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autotune.knobs.config import TrainConfig
from autotune.recorder.telling import keep_gradients


class FromGraph(torch.autograd.Function):
    """Leaves the same memory as the gradient each time, as a replayed graph does."""

    @staticmethod
    def forward(context: object, weight: torch.Tensor, memory: torch.Tensor, value: float) -> torch.Tensor:
        """The sum of the weights."""
        context.saved = memory, value  # type: ignore[attr-defined]
        return weight.sum()

    @staticmethod
    def backward(context: object, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The memory, overwritten."""
        memory, value = context.saved  # type: ignore[attr-defined]
        return memory.fill_(value), None, None


def accumulated(config: TrainConfig) -> torch.Tensor | None:
    """The gradient after micro-batches of 1, 10 and 100, in memory that each of them overwrites."""
    model = nn.Linear(1, 1, bias=False)
    keep_gradients(model, config)
    memory = torch.zeros(1, 1)
    for value in (1.0, 10.0, 100.0):
        FromGraph.apply(model.weight, memory, value).backward()  # type: ignore[no-untyped-call]
    return model.weight.grad


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "cudagraphs"])
def test_gradients_survive_the_next_replay(mode: str) -> None:
    """They add up, though each replay writes where the first gradient was."""
    gradient = accumulated(TrainConfig(compile_mode=mode, accumulation_steps=3))
    assert gradient is not None
    assert gradient.item() == 111.0


def test_without_accumulation_nothing_is_copied() -> None:
    """One micro-batch a step needs no copy."""
    model = nn.Linear(1, 1)
    keep_gradients(model, TrainConfig(compile_mode="reduce-overhead"))
    assert model.weight._post_accumulate_grad_hooks is None  # type: ignore[attr-defined]


def test_setting_gradients_to_none_begins_again() -> None:
    """The next step's first gradient is copied as well."""
    model = nn.Linear(1, 1, bias=False)
    keep_gradients(model, TrainConfig(compile_mode="reduce-overhead", accumulation_steps=2))
    memory = torch.zeros(1, 1)
    for value in (1.0, 2.0):
        model.zero_grad(set_to_none=True)
        FromGraph.apply(model.weight, memory, value).backward()  # type: ignore[no-untyped-call]
        assert model.weight.grad is not None
        assert model.weight.grad.data_ptr() != memory.data_ptr()
        assert model.weight.grad.item() == value
