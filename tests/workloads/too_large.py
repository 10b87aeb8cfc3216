"""A workload whose batch of 64 needs more address space than its process may have; a smaller one fits."""

import mmap
import resource
from pathlib import Path

import torch

from autotune import TrainConfig, Workload
from tests.workloads import tiny

ROOM_BYTES = 2 * 2**30
FLOATS = 2**24
"""That each sample takes, untouched: 64 MiB of addresses."""


def loss(model, batch):
    torch.empty(len(batch[0]) * FLOATS)
    return tiny.loss(model, batch)


def build():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))
    small = tiny.build()
    return Workload(small.model, small.dataset, loss, baseline=TrainConfig(batch_size=64))
