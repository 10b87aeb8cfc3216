"""The first workload: handwritten digits (1,797 real 8×8 scans that scikit-learn ships) and a small residual CNN.

Augmented as one would to train it: each access shifts and rotates the scan a little.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload

TEST_SHARE = 0.2
MAX_SHIFT_PIXELS, MAX_TURN_DEGREES = 0.7, 12.0


class Digits(Dataset[tuple[torch.Tensor, int]]):
    """Scans as ``(1, 8, 8)`` floats in [0, 1] with their labels.

    Args:
        train: The first 80 % of a fixed shuffle; else the rest.
        augment: Shift and turn each scan a little on every access.
    """

    def __init__(self, *, train: bool, augment: bool) -> None:
        pixels, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        cut = round(TEST_SHARE * len(labels))
        chosen = order[cut:] if train else order[:cut]
        self.images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)[chosen] / 16
        self.labels = torch.tensor(labels)[chosen].tolist()
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        return (turn_and_shift(image) if self.augment else image), self.labels[index]


def turn_and_shift(image: torch.Tensor) -> torch.Tensor:
    """A ``(1, 8, 8)`` image turned by up to 12° and shifted by up to 0.7 pixels."""
    angle, right, down = (2 * torch.rand(3) - 1).tolist()
    angle = math.radians(MAX_TURN_DEGREES) * angle
    # A pixel is a quarter of the unit square's half.
    right, down = (MAX_SHIFT_PIXELS / 4 * shift for shift in (right, down))
    matrix = torch.tensor([[math.cos(angle), -math.sin(angle), right], [math.sin(angle), math.cos(angle), down]])
    grid = functional.affine_grid(matrix[None], [1, 1, 8, 8], align_corners=False)
    return functional.grid_sample(image[None], grid, align_corners=False)[0]


class Residual(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """``(batch, channels, height, width)`` to the same."""
        return functional.relu(images + self.body(images))


def make_model(channels: int = 64) -> nn.Module:
    """``(batch, 1, 8, 8)`` to ``(batch, 10)`` scores."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), Residual(channels),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * channels), nn.ReLU(),
        Residual(2 * channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, 10),
    )  # fmt: skip


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Mean cross-entropy of a batch of images and labels."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def build(channels: int = 64, augment: bool = True) -> Workload:
    """The workload as it is trained today: PyTorch's defaults at batch 64."""
    return Workload(
        model=make_model(channels),
        dataset=Digits(train=True, augment=augment),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=2e-3, weight_decay=0.01),
        batch_size=64,
        name="digits",
    )
