"""A module that takes the signals over, SIGCHLD too, and hangs at its end."""

import atexit
import signal
import time

from tests.faults.workloads import base

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
atexit.register(time.sleep, 3600)
build = base.healthy
