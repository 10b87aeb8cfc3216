"""A workload that writes down when each of its samples was read."""

import time

import torch
from torch.utils.data import Dataset

from autotune import Workload
from tests.workloads import tiny


class Reads(Dataset):
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.001)
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{time.time()}\n")
        return torch.randn(16), index % 4


def build(log: str = ""):
    return Workload(tiny.build().model, Reads(log), tiny.loss, batch_size=4)
