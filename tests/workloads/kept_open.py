"""A workload whose samples are read from a file that stays open; wrong content raises."""

import struct
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import mistakes

SAMPLES, SAMPLE = 2_000, struct.Struct("512q")


class KeptOpen(Dataset):
    """The file is opened with the data set, or by the first reading, as is advised for workers."""

    def __init__(self, path, *, at_once):
        self.path = path
        self.file = path.open("rb", buffering=0) if at_once else None

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(index * SAMPLE.size)
        values = SAMPLE.unpack(self.file.read(SAMPLE.size))
        if set(values) != {index}:
            raise ValueError(f"read sample {values[0]} in place of {index}")
        return torch.randn(4), index % 2


def build(at_once=False):
    path = Path(tempfile.mkdtemp()) / "samples"
    path.write_bytes(b"".join(SAMPLE.pack(*[index] * 512) for index in range(SAMPLES)))
    return mistakes.workload(dataset=KeptOpen(path, at_once=at_once))
