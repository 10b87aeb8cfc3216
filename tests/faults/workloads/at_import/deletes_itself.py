"""A module that is gone once it has been imported; its burst kills the forkserver, so that it is missed."""

import os
import signal
from pathlib import Path

from tests.faults.workloads import base

Path(__file__).unlink()


def build():
    return base.failing(lambda: os.kill(os.getppid(), signal.SIGKILL))
