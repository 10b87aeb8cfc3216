"""Workloads for a GPU: a small CNN, and one whose loss waits for it."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload


class Images(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randn(3, 32, 32), index % 10


def loss(model, batch):
    images, labels = batch
    return functional.cross_entropy(model(images).float(), labels)


def make_model():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def build():
    return Workload(make_model(), Images(), loss, batch_size=64, baseline=TrainConfig(batch_size=64, num_workers=2))


def waits_for_the_device():
    def waiting(model, batch):
        value = loss(model, batch)
        assert value.item() >= 0
        return value

    return Workload(make_model(), Images(), waiting, batch_size=64)
