"""What never comes to its end."""

import atexit
import ctypes
import signal
import threading
import time

from torch.utils.data import get_worker_info

from tests.faults.workloads import base
from tests.workloads import tiny

healthy = base.healthy
FOREVER = 3600


def in_build():
    time.sleep(FOREVER)


def in_dataset():
    return base.with_dataset(base.Samples(lambda index: time.sleep(FOREVER)))


def in_worker():
    return base.with_dataset(base.Samples(lambda index: time.sleep(FOREVER) if get_worker_info() else None))


def in_forward():
    def fault(features):
        time.sleep(FOREVER)

    return base.with_loss(tiny.loss, model=base.Wrapped(fault))


def with_the_interpreter_locked():
    """Inside C code that never gives the interpreter's lock back: no thread of this process runs any more."""
    return base.failing(lambda: ctypes.PyDLL(None).sleep(FOREVER))


def deaf_to_signals():
    """Ignores every signal that may be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(FOREVER)


def at_exit():
    """Trains; what it registered for its end would hang."""
    atexit.register(time.sleep, FOREVER)
    return base.healthy()


def in_a_thread():
    """Trains; a thread that is no daemon would keep the process alive."""
    threading.Thread(target=time.sleep, args=(FOREVER,)).start()
    return base.healthy()
