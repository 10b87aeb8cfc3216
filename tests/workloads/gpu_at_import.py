"""A module that initialises CUDA while it is imported."""

import torch

from tests.workloads import gpu

TABLE = torch.zeros(1, device="cuda")
build = gpu.build
