"""The second workload: a small GPT that reads Python, one byte at a time: the standard library's own sources.

    autotune --model benchmarks.charlm:build --budget 2m
    autotune --model benchmarks.charlm:build --budget 10m --explore width=128,192

As a beginner trains it today: 32 windows an optimizer step, as 16 × 2 accumulated, in fp32 and without workers.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import Workload

VOCABULARY = 256
"""A token is a byte."""
TEXT_BYTES = 8_000_000
HEAD_WIDTH = 32
OTHERS_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"})
"""What others installed, and what some distributions of Python leave out or ship apart."""


def read_text(size: int = TEXT_BYTES) -> bytes:
    """The first bytes of the standard library's sources, one file after the other in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = bytearray()
    for path in sorted(folder.rglob("*.py")):
        if OTHERS_FOLDERS.isdisjoint(path.relative_to(folder).parts):
            text += path.read_bytes()
        if len(text) >= size:
            break
    return bytes(text[:size])


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows that lie side by side in a text, as tokens with the tokens that follow them.

    Args:
        text: Kept as bytes; they become tokens on access.
        context: Tokens of a window.
    """

    def __init__(self, text: bytes, context: int) -> None:
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.context
        tokens = torch.tensor(list(self.text[start : start + self.context + 1]), dtype=torch.int64)
        return tokens[:-1], tokens[1:]


class Block(nn.Module):
    """Causal self-attention and a two-layer perceptron, each behind a norm and around a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``(batch, context, width)`` to the same."""
        batch, context, width = states.shape
        projected = self.queries_keys_values(self.attention_norm(states))
        queries, keys, values = projected.view(batch, context, 3 * self.heads, -1).transpose(1, 2).chunk(3, dim=1)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        states = states + self.mix(attended.transpose(1, 2).reshape(batch, context, width))
        changed: torch.Tensor = states + self.perceptron(states)
        return changed


class CharGPT(nn.Module):
    """``(batch, context)`` tokens to ``(batch, context, 256)`` scores of the next one."""

    def __init__(self, layers: int, width: int, context: int) -> None:
        super().__init__()
        if width % HEAD_WIDTH:
            raise ValueError(f"width={width} was given, but a multiple of {HEAD_WIDTH} was expected")
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the token after each."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.tokens(tokens) + self.positions(positions)
        scores: torch.Tensor = self.scores(self.norm(self.blocks(states)))
        return scores


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the next byte, in nats."""
    tokens, following = batch
    return functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())


def build(layers: int = 2, width: int = 128, context: int = 128) -> Workload:
    """The workload as it is trained today; its arguments change what is learned."""
    return Workload(
        model=CharGPT(layers, width, context),
        dataset=Windows(read_text(), context),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01),
        batch_size=16,
        accumulation_steps=2,
        clip_grad_norm=1.0,
        name="charlm",
    )
