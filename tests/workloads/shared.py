"""A workload that writes down which rank reads which sample, in the order of reading."""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import Workload


class Logged(Dataset):
    def __init__(self, log, samples):
        self._log = log
        self._samples = samples

    def __len__(self):
        return self._samples

    def __getitem__(self, index):
        if self._log:
            with (Path(self._log) / f"rank{os.environ.get('RANK', '0')}").open("a") as file:
                file.write(f"{index}\n")
        return torch.randn(8, generator=torch.Generator().manual_seed(index))


def loss(model, batch):
    return model(batch).pow(2).mean()


def build(log: str = "", samples: int = 96):
    return Workload(nn.Linear(8, 4), Logged(log, samples), loss, batch_size=8, name="shared")


class Partly(nn.Module):
    """Half of its weights are not used."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(8, 4)
        self.unused = nn.Linear(8, 4)

    def forward(self, features):
        return self.used(features)


def build_partly_used():
    return Workload(Partly(), Logged("", 96), loss, batch_size=8, name="partly")


def build_heavy():
    """Much to exchange, little to compute."""
    return Workload(nn.Sequential(nn.Linear(8, 1500), nn.Linear(1500, 1500)), Logged("", 96), loss, batch_size=2)
