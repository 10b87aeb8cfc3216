"""A module that registers, for the end of the forkserver and of bursts, what never ends."""

import atexit
import time

from tests.faults.workloads import commanded

atexit.register(time.sleep, 3600)
build = commanded.hangs_in_training
