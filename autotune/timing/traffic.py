"""The least memory traffic of a step: weights, gradients, and the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..torch_settings.naming import weights_of

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


class Traffic(NamedTuple):
    """Least bytes that are read and written for any batch, without activations, which are unknown.

    Attributes:
        pass_bytes: Bytes of a micro-batch: each weight is read forward and backward, each gradient is written.
        update_bytes: Bytes of an optimizer step: gradients are read, weights and state are read and written.
    """

    pass_bytes: int
    update_bytes: int


def traffic_of(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Traffic:
    """The traffic of a training whose optimizers have stepped. Rows that a pass reads of embeddings do not count.

    Args:
        models: The trained models.
        optimizers: Their optimizers. If one keeps state for other weights but none for a weight, that weight had no
            gradient, and does not count.
    """
    import torch

    weights: dict[torch.Tensor, bool] = {}  # whether all of it is read
    for model in models:
        for module in model.modules():
            for weight in module.parameters(recurse=False):
                weights[weight] = weights.get(weight, False) or not _looks_up(module)
    trained: set[torch.Tensor] = set()
    update_bytes = 0
    for optimizer in optimizers:
        for weight in weights_of(optimizer):
            if weight in trained or not weight.requires_grad or (optimizer.state and weight not in optimizer.state):
                continue
            trained.add(weight)
            kept = [value for value in optimizer.state.get(weight, {}).values() if isinstance(value, torch.Tensor)]
            update_bytes += 3 * weight.nbytes + sum(2 * value.nbytes for value in kept if value.numel() > 1)
    read = {weight for weight, whole in weights.items() if whole and (weight in trained or not weight.requires_grad)}
    backward = sum(weight.nbytes * (1 + (weight in read)) for weight in trained)
    return Traffic(sum(weight.nbytes for weight in read) + backward, update_bytes)


def _looks_up(module: nn.Module) -> bool:
    """Whether a module only reads the rows of its weights that a batch selects."""
    from torch import nn

    return isinstance(module, (nn.Embedding, nn.EmbeddingBag))
