"""A workload that trains in milliseconds, and variants of it."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from autotune import Workload


def loss(model, batch):
    features, labels = batch
    return functional.cross_entropy(model(features), labels)


def build(width: int = 32, samples: int = 512):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(samples, 16, generator=generator)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))
    return Workload(model, TensorDataset(features, labels), loss, batch_size=32, name="tiny")


def build_tuple():
    workload = build()
    return workload.model, workload.dataset, workload.loss
