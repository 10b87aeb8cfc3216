"""A module with a timeout for its import that it forgot to switch off: it strikes the forkserver later."""

import os
import signal

from tests.faults.workloads import base

signal.setitimer(signal.ITIMER_REAL, float(os.environ["FAULTS_PAUSE"]))
build = base.healthy
