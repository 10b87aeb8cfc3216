"""A module that forks while it is imported, and both processes go on."""

import os

from tests.faults.workloads import base

os.fork()
build = base.healthy
