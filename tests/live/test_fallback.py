"""A model that fails in a setting of ours is called again in its own."""

from __future__ import annotations

import weakref
from unittest import mock

import torch
from torch import nn

from autotune.recorder.live.models import restoring, with_fallback


class Failing(nn.Module):
    """Draws random numbers, and then fails in a later call as long as it is told to."""

    def __init__(self, fails_at: int | None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.fails_at, self.calls, self.former, self.was_held = fails_at, 0, None, False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """``(batch, 4)``."""
        if self.former is not None:
            self.was_held = self.former() is not None
        activations = self.layer(values) * torch.rand(4)
        self.former = weakref.ref(activations)
        self.calls += 1
        if self.calls == self.fails_at:
            raise MemoryError
        return activations


def called(times: int, *, fails_at: int | None) -> tuple[Failing, list[torch.Tensor]]:
    """The model after some calls, and what it has returned."""
    torch.manual_seed(0)
    model = Failing(fails_at)
    end = with_fallback(model, lambda _: None)
    returned = [model(torch.ones(8, 4)) for _ in range(times)]
    end()
    return model, returned


def test_a_call_that_fails_late_draws_as_untuned() -> None:
    """Memory may run out at any time."""
    for one, other in zip(called(20, fails_at=15)[1], called(20, fails_at=None)[1], strict=True):
        assert torch.equal(one, other)


class Doubling(nn.Module):
    """Takes whatever multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        return values * 2


def test_nested_tensors_have_no_shape_that_the_guard_needs() -> None:
    """A script may call its model with them."""
    model = Doubling()
    with_fallback(model, lambda _: None)
    assert model(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])).is_nested


def test_a_guarded_model_is_exported_with_sizes_that_vary() -> None:
    """As an unguarded one."""
    model = Doubling()
    with_fallback(model, lambda _: None)
    exported = torch.export.export(model, (torch.ones(4, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert exported.module()(torch.ones(7, 3)).shape == (7, 3)


def test_a_call_that_a_cuda_graph_captures_asks_for_no_state() -> None:
    """Torch would refuse, and with it end the capture."""
    model = mock.Mock()
    model.parameters = lambda: iter([mock.Mock(is_cuda=True)])
    with mock.patch.multiple(torch.cuda, is_current_stream_capturing=lambda: True, get_rng_state=None):
        restoring(model, ())


def test_the_failed_call_is_freed_before_the_next_one() -> None:
    """Memory that has run out does not hold both."""
    assert not called(1, fails_at=1)[0].was_held
