"""A module that has its workers forked by a forkserver of its own."""

import multiprocessing

from tests.faults.workloads import base

multiprocessing.set_start_method("forkserver", force=True)


def build():
    return base.with_dataset(base.Samples())
