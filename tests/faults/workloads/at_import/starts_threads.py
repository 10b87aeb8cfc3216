"""A module that starts a thread which never ends, and is no daemon: a fork would lose it, an exit would wait for it."""

import threading
import time

from tests.faults.workloads import base

threading.Thread(target=time.sleep, args=(3600,)).start()
build = base.healthy
