"""A small vision transformer with dropout on scanned digits, four of which make an image."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload

SIDE, CLASSES = 16, 10


class Sums(Dataset[tuple[torch.Tensor, int]]):
    """``(1, 16, 16)`` images of four scans, with the last figure of their sum.

    Args:
        count: Images.
    """

    def __init__(self, count: int) -> None:
        pixels, labels = load_digits(return_X_y=True)
        self.scans = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 8, 8) / 16
        self.labels = torch.tensor(labels)
        generator = torch.Generator().manual_seed(0)
        self.chosen = torch.randint(len(labels), (count, 4), generator=generator)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        four = self.chosen[index]
        image = self.scans[four].reshape(2, 2, 8, 8).permute(0, 2, 1, 3).reshape(1, SIDE, SIDE)
        return image, int(self.labels[four].sum()) % CLASSES


class ViT(nn.Module):
    """``(batch, 1, 16, 16)`` to ``(batch, 10)`` scores.

    Args:
        width: Of a token.
        layers: Of the encoder.
        patch: Side of a patch, in pixels.
    """

    def __init__(self, width: int, layers: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, stride=patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (SIDE // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the figures."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        scores: torch.Tensor = self.scores(self.encoder(tokens).mean(dim=1))
        return scores


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy, smoothed."""
    images, figures = batch
    return functional.cross_entropy(model(images), figures, label_smoothing=0.1)


def build(width: int = 96, layers: int = 4, patch: int = 2) -> Workload:
    """The workload as it is trained today."""
    return Workload(
        model=ViT(width, layers, patch),
        dataset=Sums(4096),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=5e-4, weight_decay=0.05),
        batch_size=32,
        clip_grad_norm=1.0,
        name="patches",
    )
