"""Faults of one player of several that share a process: of the one with batches of eight, once it has begun."""

import os
import signal
import sys
import time

import psutil
import torch

from tests.faults.workloads import base
from tests.workloads import tiny

FAULTY, INCUMBENT = 8, 32
FIRST_STEPS = 8
HELD = []
"""What leaks."""


def failing(fault, batch_size=FAULTY):
    """Calls `fault` from the ninth micro-batch of this size on."""
    steps = 0

    def loss(model, batch):
        nonlocal steps
        steps += len(batch[0]) == batch_size
        value = tiny.loss(model, batch)
        if len(batch[0]) == batch_size and steps > FIRST_STEPS:
            factor = fault()
            return value if factor is None else value * factor
        return value

    return base.with_loss(loss)


class Batches(base.Samples):
    """Calls `fault` in a worker that reads the faulty player's batches, after the first few."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.count = 0

    def __getitems__(self, indices):
        self.count += 1
        if torch.utils.data.get_worker_info() is not None and len(indices) == FAULTY and self.count > FIRST_STEPS:
            self.fault()
        return [self[index] for index in indices]


def raises():
    def fault():
        raise ValueError("the loss went wrong")

    return failing(fault)


def out_of_memory():
    def fault():
        raise MemoryError

    return failing(fault)


def leaks():
    return failing(lambda: HELD.append(bytearray(os.urandom(2**20) * 2**6)))


def nan_loss():
    return failing(lambda: float("nan"))


def changes_globals():
    def fault():
        torch.set_default_dtype(torch.float64)
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True)

    return failing(fault)


def exits():
    return failing(lambda: os._exit(0))


def exits_politely():
    return failing(lambda: sys.exit(3))


def killed():
    return failing(lambda: os.kill(os.getpid(), signal.SIGKILL))


def hangs():
    return failing(lambda: time.sleep(3600))


def worker_hangs():
    return base.with_dataset(Batches(lambda: time.sleep(3600)))


def worker_killed():
    return base.with_dataset(Batches(lambda: os.kill(os.getpid(), signal.SIGKILL)))


def worker_killed_while_held():
    """The incumbent's turn ends the worker of the player that waits: a worker that lives is this one's."""

    def fault():
        for worker in psutil.Process().children():
            worker.kill()
            time.sleep(0.5)

    return failing(fault, INCUMBENT)
