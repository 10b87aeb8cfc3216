"""A module that has its workers spawned."""

import multiprocessing

from tests.faults.workloads import base

multiprocessing.set_start_method("spawn", force=True)


def build():
    return base.with_dataset(base.Samples())
