"""An import that closes every file descriptor, ours too."""

import os

from tests.faults.workloads import base

os.closerange(3, 4096)
build = base.healthy
