"""A model that fails in a setting of ours is called again in its own."""

from __future__ import annotations

import weakref
from unittest import mock

import torch
from torch import nn

from autotune.recorder.live.models import with_fallback


class Failing(nn.Module):
    """Draws random numbers, and then fails for some batches as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.fails, self.former, self.was_held = True, None, False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """``(batch, 4)``."""
        if self.former is not None:
            self.was_held = self.former() is not None
        activations = self.layer(values) * torch.rand(4)
        self.former = weakref.ref(activations)
        if self.fails and len(values) == 3:
            raise ValueError("too few")
        return activations


def called(sizes: list[int], *, fails: bool) -> tuple[Failing, list[torch.Tensor]]:
    """The model after calls with batches of these sizes, and what it has returned."""
    torch.manual_seed(0)
    model = Failing()
    model.fails = fails

    def fall_back(_: Exception) -> None:
        model.fails = False

    end = with_fallback(model, fall_back)
    returned = [model(torch.ones(size, 4)) for size in sizes]
    end()
    return model, returned


def test_a_smaller_batch_that_fails_late_draws_as_untuned() -> None:
    """Sizes that are new may fail."""
    sizes = [8] * 20 + [3, 8]
    for one, other in zip(called(sizes, fails=True)[1], called(sizes, fails=False)[1], strict=True):
        assert torch.equal(one, other)


def test_calls_that_have_gone_well_copy_no_generators() -> None:
    """That would take longer than all else."""
    with mock.patch.object(torch, "get_rng_state", wraps=torch.get_rng_state) as copies:
        called([8] * 20 + [5] * 20, fails=True)
    assert copies.call_count == 2


def test_the_failed_call_is_freed_before_the_next_one() -> None:
    """Memory that has run out does not hold both."""
    assert not called([3], fails=True)[0].was_held
