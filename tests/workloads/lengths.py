"""Sequences of varying length; one sample is much longer than the rest."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, IterableDataset

from autotune import Workload

SAMPLES, WIDTH = 256, 4
LONGEST, SHORTEST = 200, 3
LONGEST_LENGTH = 300


class Sequences(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        length = {LONGEST: LONGEST_LENGTH, SHORTEST: 2}.get(index, 5 + index % 20)
        return torch.randn(length, WIDTH), index % 3


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Sequences()[index] for index in range(SAMPLES))


def collate(samples):
    return pad_sequence([sequence for sequence, _ in samples], batch_first=True), torch.tensor([y for _, y in samples])


def loss(model, batch):
    sequences, labels = batch
    return functional.cross_entropy(model(sequences).mean(1), labels)


def build():
    return Workload(nn.Linear(WIDTH, 3), Sequences(), loss, batch_size=8, collate_fn=collate)


def build_with_sample_size():
    return Workload(
        nn.Linear(WIDTH, 3),
        Sequences(),
        loss,
        batch_size=8,
        collate_fn=collate,
        sample_size=lambda sample: -len(sample[0]),
    )


def build_iterable():
    return Workload(nn.Linear(WIDTH, 3), Stream(), loss, batch_size=8, collate_fn=collate)


def build_rarely_too_long():
    """Out of memory on long batches only, and the sampler draws the longest sample last of all."""

    def rarely_failing_loss(model, batch):
        if batch[0].shape[1] == LONGEST_LENGTH and len(batch[0]) > 1:
            torch.ones(2**44)
        return loss(model, batch)

    sampler = 200 * [index for index in range(SAMPLES) if index != LONGEST] + [LONGEST]
    return Workload(
        nn.Linear(WIDTH, 3), Sequences(), rarely_failing_loss, batch_size=4, collate_fn=collate, sampler=sampler
    )
