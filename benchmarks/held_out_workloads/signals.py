"""Dilated convolutions over long signals that look like heartbeats: which of five rhythms is it?"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload

RHYTHMS = 5


class Beats(Dataset[tuple[torch.Tensor, int]]):
    """``(1, length)`` signals with their rhythm; noise and a drift are added on each access.

    Args:
        count: Signals.
        length: Values.
    """

    def __init__(self, count: int, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rhythms = torch.randint(RHYTHMS, (count,), generator=generator)
        periods = 40 + 18 * self.rhythms + 6 * torch.rand(count, generator=generator)
        phases = torch.rand(count, generator=generator)
        place = (torch.arange(length)[None] / periods[:, None] + phases[:, None]) % 1
        peak, after = torch.exp(-(((place - 0.3) / 0.02) ** 2)), torch.exp(-(((place - 0.6) / 0.08) ** 2))
        self.signals = peak - 0.15 * torch.exp(-(((place - 0.36) / 0.02) ** 2)) + 0.3 * after

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        signal = self.signals[index]
        drift = torch.linspace(0, float(torch.randn(())), len(signal))
        return (signal + drift + 0.1 * torch.randn(len(signal)))[None], int(self.rhythms[index])


class Dilated(nn.Module):
    """A residual layer that sees `dilation` values apart.

    Args:
        width: Channels.
        dilation: Values between those that it sees.
    """

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.see = nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.norm = nn.GroupNorm(4, width)

    def forward(self, signals: torch.Tensor) -> torch.Tensor:
        """``(batch, width, length)`` to the same."""
        mixed: torch.Tensor = self.mix(functional.gelu(self.norm(self.see(signals))))
        return signals + mixed


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the rhythm."""
    signals, rhythms = batch
    return functional.cross_entropy(model(signals), rhythms)


def build(width: int = 32, length: int = 1500) -> Workload:
    """The workload as it is trained today."""
    layers = [Dilated(width, 2**level) for level in range(5)]
    model = nn.Sequential(
        nn.Conv1d(1, width, 7, stride=3, padding=3), *layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(width, RHYTHMS),
    )  # fmt: skip
    return Workload(
        model=model,
        dataset=Beats(2000, length),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=2e-3),
        batch_size=32,
        name="signals",
    )
