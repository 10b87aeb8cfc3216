"""Texts of very different lengths: real, the same each time, and padded so that nothing is learned from padding."""

from __future__ import annotations

import statistics

import pytest
import torch

from benchmarks import texts
from benchmarks.charlm import read_text


def test_building_is_always_the_same() -> None:
    """The standard library's own paragraphs."""
    data, again = (texts.build().dataset for _ in range(2))
    assert isinstance(data, texts.Texts)
    assert isinstance(again, texts.Texts)
    assert data.texts == again.texts
    assert len(data) > 5000
    assert data.texts[0] in read_text(100_000)


def test_lengths_have_a_heavy_tail() -> None:
    """Most are short, the longest five times the mean: of a batch of 16 most is padding, of one of 4 far less."""
    generator = torch.Generator().manual_seed(0)
    data = texts.build().dataset
    assert isinstance(data, texts.Texts)
    lengths = torch.tensor([len(text) for text in data.texts])
    drawn = lengths[torch.randperm(len(lengths), generator=generator)[: len(lengths) // 16 * 16]]
    padded = {size: float(drawn.view(-1, size).amax(dim=1).float().mean() / lengths.float().mean()) for size in (4, 16)}
    assert statistics.median(lengths.tolist()) < 0.8 * lengths.float().mean()
    assert padded[16] > 3
    assert padded[16] / padded[4] > 1.5


def test_loss_does_not_depend_on_how_texts_are_batched() -> None:
    """One batch of six or three of two: accumulated, they teach the same."""
    torch.manual_seed(0)
    workload = texts.build(width=32, longest=64)
    samples = [workload.dataset[index] for index in range(6)]
    with torch.no_grad():
        whole = workload.loss(workload.model, texts.pad(samples))
        parts = [workload.loss(workload.model, texts.pad(samples[first : first + 2])) for first in (0, 2, 4)]
    assert float(whole) == pytest.approx(statistics.fmean(map(float, parts)), rel=1e-5)
