"""A workload whose steps take as long whatever their batch, and that writes down what it reads and trains on."""

import os
import time

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import Workload

SAMPLES = 100_000


class Numbered(Dataset):
    def __init__(self, log, read_seconds):
        self.log = log
        self.read_seconds = read_seconds

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(self.read_seconds)
        write(self.log and f"{self.log}.read", f"{time.time()} {os.getpid()}")
        return torch.tensor([float(index)])


def write(path, line):
    if path:
        with open(path, "a") as file:
            file.write(f"{line}\n")


def build(log="", step_seconds=0.004, read_seconds=0.0, ordered=False):
    """Each line of ``log.trained`` holds the numbers of a micro-batch's samples; of ``log.read``, when and who read."""

    def loss(model, batch):
        time.sleep(step_seconds)
        write(log and f"{log}.trained", " ".join(str(int(number)) for number in batch.flatten()))
        return model(batch / SAMPLES).square().mean()

    sampler = range(SAMPLES) if ordered else None
    return Workload(nn.Linear(1, 1), Numbered(log, read_seconds), loss, batch_size=32, sampler=sampler)
