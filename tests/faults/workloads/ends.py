"""Processes that end, or are stopped, in the middle of a burst."""

import ctypes
import os
import signal
import sys
import threading

from torch.utils.data import get_worker_info

from tests.faults.workloads import base

healthy = base.healthy


def exit_quietly():
    return base.failing(lambda: os._exit(0))


def segfault():
    return base.failing(lambda: ctypes.string_at(0))


def abort():
    return base.failing(os.abort)


def killed():
    return base.failing(lambda: os.kill(os.getpid(), signal.SIGKILL))


def killed_in_build():
    os.kill(os.getpid(), signal.SIGKILL)


def exit_in_build():
    sys.exit(3)


def exit_in_loss():
    return base.failing(lambda: sys.exit(3))


def keyboard_interrupt():
    def fault():
        raise KeyboardInterrupt

    return base.failing(fault)


def kills_forkserver():
    return base.failing(lambda: os.kill(os.getppid(), signal.SIGKILL))


def kills_forkserver_in_build():
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


def stops_forkserver():
    return base.failing_once(lambda: os.kill(os.getppid(), signal.SIGSTOP))


def stops_itself():
    return base.failing(lambda: os.kill(os.getpid(), signal.SIGSTOP))


def worker_killed():
    def fault(index):
        if get_worker_info() is not None and index > 100:
            os.kill(os.getpid(), signal.SIGKILL)

    return base.with_dataset(base.Samples(fault))


def worker_exits():
    def fault(index):
        if get_worker_info() is not None and index > 100:
            os._exit(0)

    return base.with_dataset(base.Samples(fault))


def worker_segfaults():
    def fault(index):
        if get_worker_info() is not None and index > 100:
            ctypes.string_at(0)

    return base.with_dataset(base.Samples(fault))


def daemonises():
    """What a service does at its start: the process that was started ends, its grandchild goes on."""
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    return base.healthy()


def forks_in_build():
    """The parent and the child both go on, and both would tell a result."""
    os.fork()
    return base.healthy()


def closes_descriptors():
    """What daemons do with descriptors that they do not know."""
    os.closerange(3, 4096)
    return base.healthy()


def dies_in_a_thread():
    """The end comes from a thread that the training never waits for."""
    started = threading.Event()

    def fault():
        if not started.is_set():
            started.set()
            threading.Thread(target=os._exit, args=(7,), daemon=True).start()

    return base.failing(fault)
