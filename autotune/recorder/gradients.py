"""Records the losses of a script's first steps, and the gradient of the first one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .ranks import this_rank

if TYPE_CHECKING:
    import torch

MOST_ELEMENTS = 20_000_000
"""Most elements of a gradient that are compared (80 MB); a larger one is sampled evenly."""


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

    def before_step(self, weights: Iterable[torch.Tensor]) -> None:
        """Compares the complete gradient of these weights, in the first step."""
        if self._is_compared or self._request["file"] is None or this_rank():
            return
        import torch

        gradients = [_own_part(weight.grad) for weight in weights if weight.grad is not None]
        if not gradients:  # an optimizer whose step calls the model first
            return
        self._is_compared = True
        stride = max(1, math.ceil(sum(one.numel() for one in gradients) / MOST_ELEMENTS))
        flat = torch.cat([one.detach().float().cpu().contiguous().reshape(-1)[::stride] for one in gradients])
        self._norm = math.sqrt(sum(float(one.detach().double().pow(2).sum()) for one in gradients))
        file = self._request["file"]
        if not os.path.exists(file):
            torch.from_file(file, shared=True, size=flat.numel(), dtype=torch.float32).copy_(flat)
            return
        other = torch.from_file(file, size=os.path.getsize(file) // 4, dtype=torch.float32)
        if other.shape == flat.shape:
            mine, theirs = flat.double(), other.double()
            lengths = float(mine.norm() * theirs.norm())
            self._cosine = float(mine @ theirs) / lengths if lengths else float(not mine.any() and not theirs.any())

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
