"""A module that starts a helper process, which its bursts need."""

import subprocess

from tests.faults.workloads import base
from tests.faults.workloads.leaving import SLEEP, note

HELPER = subprocess.Popen(SLEEP)
note(HELPER.pid)


def build():
    assert HELPER.poll() is None
    return base.healthy()
