"""Small models with blocks that repeat."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Sequential):
    """A linear layer with dropout around a shortcut."""

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__(nn.Linear(width, width), nn.Dropout(dropout))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``(batch, width)`` to the same."""
        return features + super().forward(features).relu()


class Stages(nn.Module):
    """Three blocks of one width, then two of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = stack(3, dropout=0.0)
        self.wider = nn.Linear(8, 16)
        self.second = stack(2, 16, dropout=0.0)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``(batch, 8)`` to ``(batch, 16)``."""
        wide: torch.Tensor = self.second(self.wider(self.first(features)))
        return wide


def stack(blocks: int, width: int = 8, dropout: float = 0.0) -> nn.Sequential:
    """Alike blocks, one after the other."""
    return nn.Sequential(*(Residual(width, dropout) for _ in range(blocks)))
