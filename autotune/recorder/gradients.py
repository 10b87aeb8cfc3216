"""What a config computes in a script's first steps: losses, and the gradient of the first step."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .ranks import this_rank

if TYPE_CHECKING:
    import torch

MOST_ELEMENTS = 20_000_000
"""Of a gradient, that are compared; a larger one is sampled evenly. 80 MB."""


class Gradients:
    """Collects the losses of some optimizer steps, and compares the first one's gradient with another run's.

    Args:
        wanted: ``steps``: how many; ``file``: where the first run leaves its gradient, for the others to compare with;
            None: losses alone are wanted. Ranks exchange their gradients, so that the first one's are compared.
    """

    def __init__(self, wanted: dict[str, Any]) -> None:
        self.losses: list[torch.Tensor] = []
        self._wanted = wanted
        self._steps = 0
        self._is_compared = False
        self._norm, self._cosine = 0.0, 1.0

    def before_step(self, weights: Iterable[torch.Tensor]) -> None:
        """The gradient of these weights is complete; the first one is compared."""
        if self._is_compared or self._wanted["file"] is None or this_rank():
            return
        import torch

        gradients = [_own_part(weight.grad) for weight in weights if weight.grad is not None]
        if not gradients:  # an optimizer whose step calls the model first
            return
        self._is_compared = True
        stride = max(1, math.ceil(sum(one.numel() for one in gradients) / MOST_ELEMENTS))
        flat = torch.cat([one.detach().float().cpu().contiguous().reshape(-1)[::stride] for one in gradients])
        self._norm = math.sqrt(sum(float(one.detach().double().pow(2).sum()) for one in gradients))
        file = self._wanted["file"]
        if not os.path.exists(file):
            torch.from_file(file, shared=True, size=flat.numel(), dtype=torch.float32).copy_(flat)
            return
        other = torch.from_file(file, size=os.path.getsize(file) // 4, dtype=torch.float32)
        if other.shape == flat.shape:
            mine, theirs = flat.double(), other.double()
            lengths = float(mine.norm() * theirs.norm())
            self._cosine = float(mine @ theirs) / lengths if lengths else float(not mine.any() and not theirs.any())

    def after_step(self) -> bool:
        """Counts a step; returns whether there were enough."""
        self._steps += 1
        return self._steps >= int(self._wanted["steps"])

    def trace(self) -> dict[str, Any]:
        """What was seen."""
        losses = [float(loss.double().mean()) for loss in self.losses]  # to the last bit
        return {"losses": losses, "gradient_norm": self._norm, "cosine": self._cosine}


def _own_part(gradient: torch.Tensor) -> torch.Tensor:
    """Of a gradient that is split among ranks, what this one has: to ask for all of it, all ranks would have to."""
    own: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return own
