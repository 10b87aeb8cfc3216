"""Workloads that go wrong in one way each, once the check has let them pass; `tests/faults` has many more.

The check takes one step in a process of its own; `failing` tells the two apart by counting steps.
"""

import time

import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from autotune import Workload
from tests.faults.workloads.base import failing
from tests.workloads import tiny


def hang():
    return failing(lambda: time.sleep(3600))


def raises():
    def fault():
        raise ValueError("the loss went wrong")

    return failing(fault)


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
