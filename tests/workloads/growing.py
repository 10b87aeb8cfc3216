"""Trainings that keep something of each step, and one that keeps nothing."""

import os
import time

import torch
from torch.nn import functional

from autotune import Workload
from tests.workloads import tiny

STEP_BYTES = 2**18
KEPT = []


def keeping_loss(model, batch):
    time.sleep(0.01)
    KEPT.append((os.open("/dev/null", os.O_RDONLY), torch.ones(STEP_BYTES // 4)))
    return functional.cross_entropy(model(batch[0]), batch[1])


def steady_loss(model, batch):
    time.sleep(0.01)
    return functional.cross_entropy(model(batch[0]), batch[1])


def build_that_keeps():
    workload = tiny.build()
    return Workload(workload.model, workload.dataset, keeping_loss, batch_size=32)


def build():
    workload = tiny.build()
    return Workload(workload.model, workload.dataset, steady_loss, batch_size=32)
