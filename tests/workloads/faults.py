"""Workloads that go wrong in one way each, once the check has let them pass.

The check takes one step in a process of its own; `_in_burst` tells the two apart by counting batches.
"""

import os
import signal
import time

import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from autotune import TrainConfig, Workload
from tests.faults.workloads.base import STEPS_BEFORE_FAULT, failing
from tests.workloads import tiny


def abort():
    return failing(os.abort)


def exit_quietly():
    return failing(lambda: os._exit(0))


def hang():
    return failing(lambda: time.sleep(3600))


def killed():
    return failing(lambda: os.kill(os.getpid(), signal.SIGKILL))


def raises():
    def fault():
        raise ValueError("the loss went wrong")

    return failing(fault)


def out_of_memory():
    """Allocates for real until the allocator gives up; run it under an address-space limit."""
    return failing(lambda: torch.ones(2**40))


def nan():
    workload = tiny.build()
    steps = 0

    def loss(model, batch):
        nonlocal steps
        steps += 1
        value = tiny.loss(model, batch)
        return value * float("nan") if steps > STEPS_BEFORE_FAULT else value

    return Workload(workload.model, workload.dataset, loss, batch_size=32)


class _WorkerFault(Dataset):
    """Kills the DataLoader worker that reads from it; harmless in the training process."""

    def __init__(self, signal_number):
        self.signal_number = signal_number

    def __len__(self):
        return 512

    def __getitem__(self, index):
        if get_worker_info() is not None and index > 100:
            os.kill(os.getpid(), self.signal_number)
        return torch.randn(16), index % 4


def _worker_dies(signal_number):
    model = nn.Linear(16, 4)
    baseline = TrainConfig(batch_size=32, num_workers=2)
    return Workload(model, _WorkerFault(signal_number), tiny.loss, baseline=baseline)


def worker_killed():
    return _worker_dies(signal.SIGKILL)


def worker_bus_error():
    return _worker_dies(signal.SIGBUS)


def leaves_daemon():
    """A grandchild that leaves its session and its parent behind."""

    def fault():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(0)

    return failing(fault)


def prints_megabytes():
    return failing(lambda: print("x" * 10**6, flush=True))


def hang_in_build():
    time.sleep(3600)


def slow_with_workers():
    """Fine in the training process; with workers it hangs, so the search must get past those configs."""

    class Data(Dataset):
        def __len__(self):
            return 512

        def __getitem__(self, index):
            if get_worker_info() is not None:
                time.sleep(3600)
            return torch.randn(16), index % 4

    return Workload(nn.Linear(16, 4), Data(), tiny.loss, batch_size=32)
