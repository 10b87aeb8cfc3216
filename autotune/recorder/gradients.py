"""The gradient of a training's first step, compared with another run's; and the losses of a script's first steps."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .ranks import this_rank

MOST_ELEMENTS = 20_000_000
"""Most elements of a gradient that are compared (80 MB); a larger one is sampled evenly."""


def gradient_of(
    weights: Iterable[torch.Tensor], part_of: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, float]:
    """Copies the gradient of some weights, in their order, into one vector: fp32, on the CPU.

    Args:
        weights: The weights. A trained one without a gradient counts as zeros, so that elements keep their places.
        part_of: Makes an ordinary tensor of a gradient that may be split among ranks.

    Returns:
        The elements, or an even sample of them, and the norm of all.
    """
    trained = [weight for weight in weights if weight.requires_grad]
    stride = max(1, math.ceil(sum(weight.numel() for weight in trained) / MOST_ELEMENTS))
    elements: list[torch.Tensor] = []
    squares = 0.0
    for weight in trained:
        part = part_of(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        flat = part.detach().cpu().float().reshape(-1)
        elements.append(flat[::stride])
        squares += float(flat.double().square().sum())
    return torch.cat(elements), math.sqrt(squares)


def cosine(mine: torch.Tensor, others: torch.Tensor) -> float:
    """The cosine between two gradients: 1 if both are zero, 0 if they belong to different weights."""
    if mine.shape != others.shape:
        return 0.0
    mine, others = mine.double(), others.double()
    lengths = float(mine.norm() * others.norm())
    return float(mine @ others) / lengths if lengths else float(not mine.any() and not others.any())


class Gradients:
    """Collects the losses of some optimizer steps, and compares the first one's gradient with another run's.

    Args:
        request: ``steps`` is their number. ``file`` is where the first run leaves its gradient, for later runs to
            compare with; None for losses only. Ranks exchange their gradients, so only the first rank compares.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.losses: list[torch.Tensor] = []
        self._request = request
        self._steps = 0
        self._is_compared = False
        self._norm, self._cosine = 0.0, 1.0

    def before_step(self, weights: Sequence[torch.Tensor]) -> None:
        """Compares the complete gradient of these weights, in the first step."""
        file = self._request["file"]
        if self._is_compared or file is None or this_rank():
            return
        if all(weight.grad is None for weight in weights):  # an optimizer whose step calls the model first
            return
        self._is_compared = True
        gradient, self._norm = gradient_of(weights, _own_part)
        if os.path.exists(file):
            first = torch.from_file(file, size=os.path.getsize(file) // 4, dtype=torch.float32)
            self._cosine = cosine(gradient, first)
        else:
            torch.from_file(file, shared=True, size=gradient.numel(), dtype=torch.float32).copy_(gradient)

    def after_step(self) -> bool:
        """Counts a step; returns whether it was the last one needed."""
        self._steps += 1
        return self._steps >= int(self._request["steps"])

    def trace(self) -> dict[str, Any]:
        """The losses and the comparison."""
        losses = [float(loss.double().mean()) for loss in self.losses]  # to the last bit
        return {"losses": losses, "gradient_norm": self._norm, "cosine": self._cosine}


def _own_part(gradient: torch.Tensor) -> torch.Tensor:
    """This rank's part of a gradient. To gather all of it, all ranks would have to take part."""
    own: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return own
