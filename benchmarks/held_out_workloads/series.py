"""Two layers of LSTM that foretell made-up series: a fused recurrent kernel that few knobs change."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from autotune import Workload

CHANNELS = 6


def make_series(count: int, steps: int) -> torch.Tensor:
    """``(count, steps, CHANNELS)``: sums of three waves and a walk."""
    generator = torch.Generator().manual_seed(0)
    times = torch.arange(steps)[None, :, None, None]
    periods = 8 + 40 * torch.rand(count, 1, CHANNELS, 3, generator=generator)
    phases = 2 * math.pi * torch.rand(count, 1, CHANNELS, 3, generator=generator)
    waves = torch.sin(2 * math.pi * times / periods + phases).sum(dim=3)
    return waves + 0.1 * torch.randn(count, steps, CHANNELS, generator=generator).cumsum(dim=1)


class Forecast(nn.Module):
    """``(batch, steps, CHANNELS)`` to the values of the step after each.

    Args:
        width: Of the state.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.states = nn.LSTM(CHANNELS, width, num_layers=2, batch_first=True, dropout=0.1)
        self.values = nn.Linear(width, CHANNELS)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """The next values."""
        states, _ = self.states(series)
        values: torch.Tensor = self.values(states)
        return values


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Smooth absolute error of what comes next."""
    (series,) = batch
    return functional.smooth_l1_loss(model(series[:, :-1]), series[:, 1:])


def build(width: int = 96, steps: int = 65) -> Workload:
    """The workload as it is trained today."""
    return Workload(
        model=Forecast(width),
        dataset=TensorDataset(make_series(3000, steps)),
        loss=loss,
        optimizer=lambda params: torch.optim.RMSprop(params, lr=1e-3),
        batch_size=32,
        clip_grad_norm=1.0,
        name="series",
    )
