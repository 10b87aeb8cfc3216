"""A workload whose samples are read from a file, and that writes down which."""

from pathlib import Path

import torch
from torch.utils.data import Dataset

from autotune import Workload
from tests.workloads import tiny

SAMPLES, SAMPLE_BYTES = 10_000, 4096


class Files(Dataset):
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        with open(Path(__file__), "rb") as file:
            file.read(SAMPLE_BYTES)
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{index}\n")
        return torch.randn(16), index % 4


def build(log: str = ""):
    return Workload(tiny.build().model, Files(log), tiny.loss, batch_size=4)
