"""A module after whose import torch says that CUDA is initialised; as a stand-in for a GPU."""

import torch

from tests.faults.workloads import base

torch.cuda.is_initialized = lambda: True
build = base.healthy
