"""Copies of weights and optimizer state, to restore them after a player has spoilt them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..torch_settings.naming import weights_of
from .usage import available_bytes

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

KEPT_SHARE = 0.125
"""Largest share of available memory for a copy of weights and optimizer state. If they are larger, a loss that is not
finite ends the host, which starts again without the player. Not tuned."""


class Keeping:
    """Copies of the tensors of some models and optimizers, on the host."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] | None = None

    def keep(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """Copies them for `restore`, unless memory is short."""
        tensors = list(_tensors(models, optimizers))
        available = available_bytes()
        if available is not None and sum(tensor.nbytes for tensor in tensors) > KEPT_SHARE * available:
            self._kept = None
        elif self._kept is not None and len(self._kept) == len(tensors):
            for kept, tensor in zip(self._kept, tensors, strict=True):
                kept.copy_(tensor)
        else:
            self._kept = [tensor.detach().to("cpu", copy=True) for tensor in tensors]

    def restore(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> bool:
        """Restores the copies, and drops gradients; returns whether there was a copy."""
        import torch

        optimizers = list(optimizers)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        tensors = list(_tensors(models, optimizers))
        if self._kept is None or len(self._kept) != len(tensors):
            return False
        with torch.no_grad():
            for tensor, kept in zip(tensors, self._kept, strict=True):
                tensor.copy_(kept)
        return True


def _tensors(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Iterator[torch.Tensor]:
    """Yields weights, each once, then buffers and the state of optimizers."""
    import torch

    models, optimizers = list(models), list(optimizers)
    weights = [weight for model in models for weight in model.parameters()]
    weights += weights_of(*optimizers)
    yield from ({id(weight): weight.data for weight in weights}).values()
    for model in models:
        yield from model.buffers()
    for one in optimizers:
        for state in one.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))
