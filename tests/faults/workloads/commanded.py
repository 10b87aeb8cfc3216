"""Workloads for the whole command: they pass its check, and stop where a test wants to strike."""

import time

import torch

from autotune import Workload
from tests.faults.workloads import base, compiling
from tests.workloads import tiny

FOREVER = 3600


def hangs_in_check():
    time.sleep(FOREVER)


def hangs_in_training():
    """The check takes one step; a burst takes more."""
    return base.failing(lambda: time.sleep(FOREVER))


def hangs_at_another_batch():
    """The baseline's is full: 512 samples are 16 batches of 32. The check halves one, without gradients."""

    def loss(model, batch):
        if len(batch[0]) < 32 and torch.is_grad_enabled():
            time.sleep(FOREVER)
        return tiny.loss(model, batch)

    return base.with_loss(loss)


def gains_by_workers():
    """Waiting for samples takes as long as computing, and neither takes the processor: a worker nearly halves both."""

    def loss(model, batch):
        time.sleep(0.02)
        return tiny.loss(model, batch)

    workload = base.with_loss(loss)
    return Workload(workload.model, base.Samples(lambda index: time.sleep(0.0005)), loss, batch_size=32)


def cannot_be_compiled():
    return compiling.no_compiler()
