"""Exceptions, each at one place; and losses that are no numbers."""

import torch
from torch import nn

from autotune import Workload
from tests.faults.workloads import base
from tests.workloads import tiny

healthy = base.healthy


class OddError(Exception):
    """An error that cannot even be printed."""

    def __str__(self):
        raise RuntimeError("no words")


def in_build():
    raise ValueError("the build went wrong")


def in_dataset():
    def fault(index):
        raise ValueError("the sample went wrong")

    return base.with_dataset(base.Samples(fault))


def in_worker():
    return in_dataset()


def in_collate():
    def collate(samples):
        raise ValueError("the collation went wrong")

    return base.with_dataset(base.Samples(), collate_fn=collate)


def in_forward():
    def fault(features):
        raise ValueError("the forward pass went wrong")

    return base.with_loss(tiny.loss, model=base.Wrapped(fault))


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("the backward pass went wrong")


def in_backward():
    return base.with_loss(lambda model, batch: _Backward.apply(tiny.loss(model, batch)))


def in_loss():
    def fault():
        raise ValueError("the loss went wrong")

    return base.failing(fault)


class _Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        raise ValueError("the optimizer went wrong")


def in_optimizer():
    return base.with_loss(tiny.loss, optimizer=lambda parameters: _Optimizer(parameters, lr=0.01))


def making_the_optimizer():
    def make(parameters):
        raise ValueError("no optimizer came")

    return base.with_loss(tiny.loss, optimizer=make)


def without_words():
    def fault():
        raise OddError

    return base.failing(fault)


def nan_loss():
    return base.with_loss(lambda model, batch: tiny.loss(model, batch) * float("nan"))


def diverges():
    """A learning rate so high that the loss overflows after some steps, as in training."""
    return base.with_loss(tiny.loss, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e30))


def no_batch():
    """An iterable dataset that yields nothing."""

    class Empty(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    return Workload(nn.Linear(16, 4), Empty(), tiny.loss, batch_size=32)
