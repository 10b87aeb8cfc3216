"""What the faulty workloads are made from: the tiny one, with a fault at one place."""

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload
from tests.workloads import tiny

STEPS_BEFORE_FAULT = 3
BASELINE = TrainConfig(batch_size=32)


def healthy():
    """Trains; what runs after each fault."""
    return tiny.build()


def with_loss(loss, **parts):
    """The tiny workload with another loss."""
    workload = tiny.build()
    return Workload(parts.pop("model", workload.model), workload.dataset, loss, batch_size=32, **parts)


def failing(fault):
    """The tiny workload whose loss calls `fault` from its fourth step on; a loss without gradients is no step."""
    steps = 0

    def loss(model, batch):
        nonlocal steps
        steps += torch.is_grad_enabled()
        if steps > STEPS_BEFORE_FAULT and torch.is_grad_enabled():
            fault()
        return tiny.loss(model, batch)

    return with_loss(loss)


def failing_once(fault):
    """As `failing`, but only the fourth step calls `fault`."""
    done = []

    def once():
        if not done:
            done.append(True)
            fault()

    return failing(once)


class Wrapped(nn.Module):
    """The tiny model, with something else that happens in its forward pass."""

    def __init__(self, before):
        super().__init__()
        self.inner = tiny.build().model
        self.before = before

    def forward(self, features):
        return self.inner(self.before(features))


class Samples(Dataset):
    """The tiny dataset, with something else that happens when a sample is read."""

    def __init__(self, before=None):
        self.inner = tiny.build().dataset
        self.before = before

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        if self.before is not None:
            self.before(index)
        return self.inner[index]


def with_dataset(dataset, **parts):
    """The tiny workload with another dataset."""
    return Workload(tiny.build().model, dataset, tiny.loss, batch_size=32, **parts)
