"""Memory that runs out: by a limit on the address space, bit by bit, by the kernel, in /dev/shm."""

import mmap
import os
import resource
import signal
from pathlib import Path

import torch
from torch.utils.data import get_worker_info

from tests.faults.workloads import base
from tests.workloads import tiny

healthy = base.healthy
HEADROOM_BYTES = 512 * 2**20
CHUNK = 2**28  # floats: twice the headroom


def limit_memory():
    """From here on this process gets little more than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM_BYTES, used + HEADROOM_BYTES))


def in_build():
    torch.ones(2**40)


def in_forward():
    limit_memory()

    def grow(features):
        return features + torch.ones(CHUNK).mean()

    return base.with_loss(tiny.loss, model=base.Wrapped(grow))


class _Greedy(torch.autograd.Function):
    @staticmethod
    def forward(context, features):
        return features.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient + torch.ones(CHUNK).mean()


def in_backward():
    limit_memory()
    return base.with_loss(lambda model, batch: _Greedy.apply(tiny.loss(model, batch)))


class _GreedyOptimizer(torch.optim.SGD):
    def step(self, closure=None):
        torch.ones(CHUNK)
        return super().step(closure)


def in_optimizer_step():
    limit_memory()
    return base.with_loss(tiny.loss, optimizer=lambda parameters: _GreedyOptimizer(parameters, lr=0.01))


def python_objects():
    """Fills the memory with small objects, so that nothing is left to report it with."""
    limit_memory()
    kept = []

    def fill():
        while True:
            kept.append(bytearray(64))

    return base.failing(fill)


def memory_error():
    def fault():
        raise MemoryError

    return base.failing(fault)


def above_the_target():
    """Takes a gigabyte that is there, which is more than it was told that it may."""
    kept = []

    def fault():
        if not kept:
            kept.append(torch.ones(2**28))

    return base.failing(fault)


def killed_by_the_kernel():
    """What the kernel's out-of-memory killer does: it counts, and it kills."""

    def fault():
        counters = Path(os.environ["FAULTS_VMSTAT"])
        counters.write_text("oom_kill 8\n")
        os.kill(os.getpid(), signal.SIGKILL)

    return base.failing(fault)


def worker_killed_by_the_kernel():
    def fault(index):
        if get_worker_info() is not None and index > 100:
            Path(os.environ["FAULTS_VMSTAT"]).write_text("oom_kill 8\n")
            os.kill(os.getpid(), signal.SIGKILL)

    return base.with_dataset(base.Samples(fault))


class _Wide(base.Samples):
    """Samples of a quarter of a megabyte: a few batches fill a small /dev/shm."""

    def __getitem__(self, index):
        features, label = self.inner[index]
        return features, label, torch.ones(2**16)


def shared_memory():
    workload = base.with_dataset(_Wide())
    return base.Workload(
        workload.model, workload.dataset, lambda model, batch: tiny.loss(model, batch[:2]), batch_size=32
    )


def worker_bus_error():
    def fault(index):
        if get_worker_info() is not None and index > 100:
            os.kill(os.getpid(), signal.SIGBUS)

    return base.with_dataset(base.Samples(fault))


def disk_full():
    """A dataset that writes to a disk that is full: not the shared memory's fault."""

    def fault(index):
        with open("/dev/full", "wb") as file:
            file.write(b"x" * 2**20)

    return base.with_dataset(base.Samples(fault))
