"""A workload that is all overhead: a gated recurrent cell written out by hand, a dozen tiny operations a step.

    autotune --model benchmarks.gates:build --budget 3m

It reads Python one byte at a time, as `benchmarks.charlm` does, and guesses the byte after each window.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autotune import Workload
from benchmarks.charlm import VOCABULARY, Windows, read_text


class Gates(nn.Module):
    """``(batch, steps)`` tokens to ``(batch, 256)`` scores of the one after the last.

    Args:
        width: Of the state.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.update = nn.Linear(2 * width, width)
        self.reset = nn.Linear(2 * width, width)
        self.candidate = nn.Linear(2 * width, width)
        self.scores = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The cell of Cho et al. (2014), step by step."""
        embedded = self.tokens(tokens)
        state = torch.zeros_like(embedded[:, 0])
        for step in range(tokens.shape[1]):
            both = torch.cat([embedded[:, step], state], dim=1)
            update, reset = torch.sigmoid(self.update(both)), torch.sigmoid(self.reset(both))
            candidate = torch.tanh(self.candidate(torch.cat([embedded[:, step], reset * state], dim=1)))
            state = (1 - update) * state + update * candidate
        scores: torch.Tensor = self.scores(state)
        return scores


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Mean cross-entropy of the byte after each window, in nats."""
    tokens, following = batch
    return functional.cross_entropy(model(tokens), following[:, -1])


def build(width: int = 32, steps: int = 24) -> Workload:
    """The workload as it is trained today; its arguments change what is learned."""
    return Workload(
        model=Gates(width),
        dataset=Windows(read_text(), steps),
        loss=loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=2e-3),
        batch_size=32,
        clip_grad_norm=1.0,
        name="gates",
    )
