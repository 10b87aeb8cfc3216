"""A module that prints megabytes while it is imported."""

import sys

from tests.faults.workloads import base

for stream in (sys.stdout, sys.stderr):
    stream.write("x" * 10**7)
build = base.healthy
