"""Texts of very different lengths: the paragraphs of Python's own sources, padded to the longest of their batch.

    autotune --model benchmarks.texts:build --budget 3m

Most are a few lines, some are forty times as long (a heavy tail), so that of a batch of 16 two thirds are padding, and
of a batch of 4 half: smaller batches, accumulated to the same 32 texts an optimizer step, compute less. A rate that is
the median of a few blocks does not see it, since it leaves out the long batches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from autotune import Workload
from benchmarks.charlm import CharGPT, read_text

TEXT_BYTES = 2_000_000
SHORTEST = 16
PADDING = 0
"""No byte of a source is zero."""
IGNORED = -100
"""`cross_entropy` leaves out what has this target."""


def paragraphs(text: bytes, longest: int) -> list[bytes]:
    """What lies between empty lines, cut at so many bytes; what is hardly a word is left out."""
    parts = (part.strip() for part in re.split(rb"\n\s*\n", text))
    return [part[:longest] for part in parts if len(part) >= SHORTEST]


class Texts(Dataset[torch.Tensor]):
    """Texts as tokens, each of its own length.

    Args:
        texts: Kept as bytes; they become tokens on access.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(list(self.texts[index]), dtype=torch.int64)


def pad(samples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """``(batch, longest)`` tokens, padded at the end, with the tokens that follow them."""
    tokens = pad_sequence(list(samples), batch_first=True, padding_value=PADDING)
    following = tokens[:, 1:]
    return tokens[:, :-1], following.masked_fill(following == PADDING, IGNORED)


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy of the next byte: the mean over each text, then over texts, however they are split into batches."""
    tokens, following = batch
    scores, targets = model(tokens).flatten(0, 1), following.flatten()
    each = functional.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="none").view_as(following)
    return (each.sum(dim=1) / (following != IGNORED).sum(dim=1)).mean()


def build(layers: int = 1, width: int = 64, longest: int = 1024) -> Workload:
    """The workload as it is trained today; its arguments change what is learned.

    The model looks back only, so that padding at the end changes nothing.
    """
    return Workload(
        model=CharGPT(layers, width, longest),
        dataset=Texts(paragraphs(read_text(TEXT_BYTES), longest)),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01),
        collate_fn=pad,
        batch_size=16,
        accumulation_steps=2,
        clip_grad_norm=1.0,
        sample_size=len,
        name="texts",
    )
