"""A module that sets torch's number of threads."""

import torch

from tests.faults.workloads import base

torch.set_num_threads(1)
build = base.healthy
