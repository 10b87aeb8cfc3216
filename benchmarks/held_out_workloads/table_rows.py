"""A wide table: embeddings of categories beside numbers, and a network that is cheap beside reading its rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload

CATEGORIES = (3000, 800, 400, 120, 60, 24, 12, 7)
NUMBERS = 13


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Generated clicks: each row a dict of categories, numbers and a label, made tensors on access.

    Args:
        count: Rows.
    """

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        popular = [np.minimum(rng.zipf(1.3, count) - 1, size - 1) for size in CATEGORIES]
        self.categories = np.stack(popular, axis=1).astype(np.int64)
        self.numbers = rng.lognormal(0, 1, (count, NUMBERS)).astype(np.float32)
        effects = [rng.normal(0, 1, size) for size in CATEGORIES]
        logit = sum(effect[column] for effect, column in zip(effects, self.categories.T, strict=True))
        self.labels = (logit + rng.logistic(0, 1, count) > 0).astype(np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "categories": torch.from_numpy(self.categories[index]),
            "numbers": torch.log1p(torch.from_numpy(self.numbers[index])),
            "label": torch.tensor(self.labels[index]),
        }


class Clicks(nn.Module):
    """``(batch, 8)`` categories and ``(batch, 13)`` numbers to ``(batch,)`` logits.

    Args:
        width: Of an embedding.
        hidden: Of the layers.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in CATEGORIES)
        self.layers = nn.Sequential(
            nn.Linear(width * len(CATEGORIES) + NUMBERS, hidden), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Logits of a click."""
        parts = [one(column) for one, column in zip(self.embeddings, categories.unbind(1), strict=True)]
        logits: torch.Tensor = self.layers(torch.cat([*parts, numbers], dim=1)).squeeze(1)
        return logits


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean binary cross-entropy."""
    logits = model(batch["categories"], batch["numbers"])
    return functional.binary_cross_entropy_with_logits(logits, batch["label"])


def build(width: int = 16, hidden: int = 256) -> Workload:
    """The workload as it is trained today."""
    return Workload(
        model=Clicks(width, hidden),
        dataset=Rows(40_000),
        loss=loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        batch_size=256,
        name="table_rows",
    )
