"""A module that computes on all threads while it is imported: a fork of its OpenMP pool would hang."""

import torch

from tests.workloads import tiny

TABLE = (torch.ones(2000, 2000) @ torch.ones(2000, 2000)).exp_()
build = tiny.build
