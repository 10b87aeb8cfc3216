"""Workloads for a GPU: a small CNN, and ones that run out of its memory in each part of a step."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload

HUGE = 2**40


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


def oom_in_forward():
    def failing(model, batch):
        torch.empty(HUGE, device=batch[0].device)
        return loss(model, batch)

    return Workload(make_model(), Images(), failing, batch_size=64)


class _HugeBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context, value):
        return value.clone()

    @staticmethod
    def backward(_context, gradient):
        torch.empty(HUGE, device=gradient.device)
        return gradient


def oom_in_backward():
    return Workload(make_model(), Images(), lambda model, batch: _HugeBackward.apply(loss(model, batch)), batch_size=64)


class _HugeStep(torch.optim.SGD):
    def step(self, closure=None):
        torch.empty(HUGE, device=self.param_groups[0]["params"][0].device)
        return super().step(closure)


def oom_in_optimizer():
    return Workload(make_model(), Images(), loss, optimizer=lambda params: _HugeStep(params, lr=0.1), batch_size=64)


def waits_for_the_device():
    def waiting(model, batch):
        value = loss(model, batch)
        assert value.item() >= 0
        return value

    return Workload(make_model(), Images(), waiting, batch_size=64)
