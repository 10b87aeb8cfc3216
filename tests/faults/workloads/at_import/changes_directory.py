"""An import after which relative paths mean something else."""

import os
import tempfile

from tests.faults.workloads import base

os.chdir(tempfile.mkdtemp())
build = base.healthy
