"""A deep network of tiny layers on a small table: nearly all of a step is what calling an operation costs."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from autotune import Workload


class Gated(nn.Module):
    """A residual layer with a gate and a norm.

    Args:
        width: Of its input and its output.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.both = nn.Linear(width, 2 * width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """``(batch, width)`` to the same."""
        value, gate = self.both(self.norm(rows)).chunk(2, dim=1)
        return rows + torch.tanh(value) * torch.sigmoid(gate)


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of malignant or benign."""
    rows, labels = batch
    return functional.cross_entropy(model(rows), labels)


def build(width: int = 24, layers: int = 3) -> Workload:
    """The workload as it is trained today: 569 tumours with 30 measures each, real ones."""
    measures, labels = load_breast_cancer(return_X_y=True)
    rows = torch.tensor(measures, dtype=torch.float32)
    rows = (rows - rows.mean(dim=0)) / rows.std(dim=0)
    model = nn.Sequential(nn.Linear(rows.shape[1], width), *(Gated(width) for _ in range(layers)), nn.Linear(width, 2))
    return Workload(
        model=model,
        dataset=TensorDataset(rows, torch.tensor(labels)),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        batch_size=16,
        clip_grad_norm=1.0,
        name="tiny_layers",
    )
