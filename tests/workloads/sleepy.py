"""Workloads whose time is spent asleep, so that their rate is known on a busy machine too."""

import time

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload


class Sleepy(Dataset):
    def __init__(self, samples, read_seconds):
        self.samples = samples
        self.read_seconds = read_seconds

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        time.sleep(self.read_seconds)
        return torch.ones(4)


def build(samples=10_000, read_seconds=0.0, step_seconds=0.0, start_seconds=0.0, **knobs):
    """Reading a sample, a micro-step, and the start of a worker take this long."""

    def loss(model, batch):
        time.sleep(step_seconds)
        return model(batch).square().mean()

    return Workload(
        nn.Linear(4, 1),
        Sleepy(samples, read_seconds),
        loss,
        baseline=TrainConfig(**knobs),
        worker_init_fn=lambda _: time.sleep(start_seconds),
    )
