"""A workload that one process at a time can train, as where memory, a port or a database is for one."""

import fcntl
import os

from torch import nn

from autotune import Workload
from tests.workloads.shared import Logged, loss


def build(folder: str, raises: str = "MemoryError"):
    lock = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT)  # as long as this process lives
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise {"MemoryError": MemoryError, "OSError": OSError}[raises]("another process trains") from None
    return Workload(nn.Linear(8, 4), Logged("", 960), loss, batch_size=8, name="crowded")
