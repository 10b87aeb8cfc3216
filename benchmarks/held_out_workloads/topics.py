"""Passages of Python's own reference, of very different length and padded: which topic are they from?"""

from __future__ import annotations

import pydoc_data.topics
import zlib
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from autotune import Workload

VOCABULARY, PADDING = 4096, 0
SHORTEST, LONGEST = 4, 256

Sample = tuple[torch.Tensor, int]


class Passages(Dataset[Sample]):
    """Paragraphs as hashed words, each with the number of its topic."""

    def __init__(self) -> None:
        texts = sorted(pydoc_data.topics.topics.items())
        self.topics = len(texts)
        self.passages: list[tuple[list[int], int]] = []
        for number, (_, text) in enumerate(texts):
            for paragraph in text.split("\n\n"):
                words = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in paragraph.split()]
                if len(words) >= SHORTEST:
                    self.passages.append((words[:LONGEST], number))

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, index: int) -> Sample:
        words, topic = self.passages[index]
        return torch.tensor(words), topic


def pad(samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    """``(batch, longest)`` words, padded, and the topics."""
    words = pad_sequence([words for words, _ in samples], batch_first=True, padding_value=PADDING)
    return words, torch.tensor([topic for _, topic in samples])


class Reader(nn.Module):
    """``(batch, words)`` to ``(batch, topics)`` scores: a bidirectional GRU, whose states attention weighs.

    Args:
        topics: How many.
        width: Of the state, in each direction.
    """

    def __init__(self, topics: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        self.states = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.weights = nn.Linear(2 * width, 1)
        self.scores = nn.Linear(2 * width, topics)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the topics."""
        states, _ = self.states(self.words(words))
        weights = self.weights(states).squeeze(2).masked_fill(words == PADDING, -1e4).softmax(dim=1)
        scores: torch.Tensor = self.scores((weights[:, :, None] * states).sum(dim=1))
        return scores


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of the topic."""
    words, topics = batch
    return functional.cross_entropy(model(words), topics)


def words_of(sample: Sample) -> int:
    """The length of a passage."""
    return len(sample[0])


def build(width: int = 64) -> Workload:
    """The workload as it is trained today."""
    passages = Passages()
    return Workload(
        model=Reader(passages.topics, width),
        dataset=passages,
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=2e-3),
        collate_fn=pad,
        batch_size=32,
        sample_size=words_of,
        name="topics",
    )
