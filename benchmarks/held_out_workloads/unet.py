"""A U-Net that segments discs on noisy images, eight at a time: large activations, which glibc's malloc maps anew."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload

DISCS = 6


class Discs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """``(3, side, side)`` images of bright discs on noise, with the ``(side, side)`` mask of the discs.

    Args:
        count: Images.
        side: Pixels.
    """

    def __init__(self, count: int, side: int) -> None:
        generator = torch.Generator().manual_seed(0)
        across = torch.linspace(0, 1, side)
        centres = torch.rand(count, DISCS, 2, 1, 1, generator=generator)
        radii = 0.04 + 0.12 * torch.rand(count, DISCS, 1, 1, generator=generator)
        apart = (across[:, None] - centres[:, :, 0]) ** 2 + (across[None, :] - centres[:, :, 1]) ** 2
        self.masks = (apart < radii**2).any(dim=1).long()
        noise = torch.randn(count, 3, side, side, generator=generator)
        self.images = 0.8 * self.masks[:, None] + 0.5 * noise

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.masks[index]


def _twice(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    """``(batch, 3, side, side)`` to ``(batch, 2, side, side)`` scores (Ronneberger et al. 2015, smaller).

    Args:
        width: Channels of the first level; each level below has twice as many.
        levels: Of which each halves the side.
    """

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(_twice(before, after) for before, after in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * one, one, 2, stride=2) for one in reversed(widths[:-1]))
        self.joined = nn.ModuleList(_twice(2 * one, one) for one in reversed(widths[:-1]))
        self.scores = nn.Conv2d(width, 2, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of each pixel."""
        kept: list[torch.Tensor] = []
        for level, down in enumerate(self.down):
            images = down(functional.max_pool2d(images, 2) if level else images)
            kept.append(images)
        for up, joined, beside in zip(self.up, self.joined, reversed(kept[:-1]), strict=True):
            images = joined(torch.cat([up(images), beside], dim=1))
        scores: torch.Tensor = self.scores(images)
        return scores


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the pixels."""
    images, masks = batch
    return functional.cross_entropy(model(images), masks)


def build(width: int = 16, levels: int = 4, side: int = 112) -> Workload:
    """The workload as it is trained today."""
    return Workload(
        model=UNet(width, levels),
        dataset=Discs(256, side),
        loss=loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        batch_size=8,
        name="unet",
    )
