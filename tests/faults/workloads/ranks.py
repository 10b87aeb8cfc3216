"""What happens to the second of two ranks alone: it ends, is stopped, runs out of memory, hangs."""

import os
import resource
import signal
import time

import torch
from torch import nn

from autotune import Workload
from tests.faults.workloads import base, memory
from tests.workloads import tiny

healthy = base.healthy


def on_second(fault):
    """Does it on the second rank only."""
    return lambda: fault() if os.environ.get("RANK") == "1" else None


def killed():
    return base.failing(on_second(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def killed_in_build():
    on_second(lambda: os.kill(os.getpid(), signal.SIGKILL))()
    return tiny.build()


def stops_itself():
    return base.failing(on_second(lambda: os.kill(os.getpid(), signal.SIGSTOP)))


def raises_in_loss():
    def fault():
        raise RuntimeError("the loss went wrong on one rank")

    return base.failing(on_second(fault))


def exits_quietly():
    return base.failing(on_second(lambda: os._exit(0)))


def out_of_memory_in_backward():
    if os.environ.get("RANK") != "1":
        return tiny.build()
    workload = memory.in_backward()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    assert soft <= hard
    return workload


def sleeps_for_ever():
    return base.failing(on_second(lambda: time.sleep(3600)))


def nan_loss():
    """The loss of one rank becomes NaN, and with the gradients the weights of both."""

    def loss(model, batch):
        value = tiny.loss(model, batch)
        return value * float("nan") if os.environ.get("RANK") == "1" else value

    return base.with_loss(loss)


class Escaping(nn.Module):
    """Its loss is computed past its own forward(), so that nobody exchanges its gradients."""

    def __init__(self):
        super().__init__()
        self.inner = tiny.build().model

    def forward(self, features):
        return self.inner(features)


def past_the_model():
    workload = tiny.build()
    model = Escaping()

    def loss(_model, batch):
        features, labels = batch
        return nn.functional.cross_entropy(model.inner(features + 1e-3 * torch.randn(1)), labels)

    return Workload(model, workload.dataset, loss, batch_size=32)
