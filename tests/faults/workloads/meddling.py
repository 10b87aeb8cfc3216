"""User code that changes what it shares with the burst: streams, folders, signals, threads, modules, descriptors."""

import builtins
import contextlib
import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time

import torch

from tests.faults.workloads import base
from tests.workloads import tiny

healthy = base.healthy


def prints_megabytes():
    return base.failing(lambda: print("x" * 10**6, flush=True))


def writes_to_descriptors():
    """Past Python's own streams, as C libraries do, and in the shape of an event."""
    line = b'{"event": "result", "number": 1, "value": {}}\n'

    def fault():
        os.write(1, line)
        os.write(2, line)

    return base.failing(fault)


def reads_stdin():
    """Would swallow a request, or wait for ever, if standard input were ours."""

    def fault():
        if sys.stdin.read() != "":
            raise RuntimeError("something came")

    return base.failing(fault)


def closes_streams():
    sys.stdin.close()
    sys.stdout.close()
    sys.stderr.close()
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    return base.healthy()


def changes_directory():
    os.chdir(tempfile.mkdtemp())
    return base.healthy()


def deletes_its_directory():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    return base.healthy()


def ignores_signals():
    """The burst is over all the same, and its workers too."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    return base.healthy()


def sets_an_alarm():
    """A timeout of the user's own that strikes in the middle of training."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    return base.failing(lambda: time.sleep(0.05))


def new_session():
    """The burst leads its session already, as whatever an interactive shell starts leads its group."""
    os.setsid()
    return base.healthy()


def disables_gc():
    gc.disable()
    return base.healthy()


def sets_threads():
    torch.set_num_threads(1)
    return base.healthy()


def exhausts_descriptors():
    """Leaves not a single descriptor free; training itself needs none."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    kept = []

    def fault():
        with contextlib.suppress(OSError):
            while True:
                kept.append(os.open(os.devnull, os.O_RDONLY))

    return base.failing(fault)


def replaces_the_clock():
    """As tests that freeze the time do."""
    for name in ("perf_counter", "monotonic", "time", "sleep"):
        setattr(time, name, lambda *_: 0.0)
    return base.healthy()


def replaces_json():
    """By a faster one that returns bytes."""
    json.dumps = lambda value, **_: b"{}"
    json.loads = lambda text, **_: {}
    return base.healthy()


def replaces_print():
    """It raises when it is called."""

    def refuse(*_, **__):
        raise RuntimeError("not any more")

    builtins.print = refuse
    return base.healthy()


def default_dtype():
    """Everything that torch makes is of another type from here on."""
    torch.set_default_dtype(torch.float64)
    workload = tiny.build()
    return base.Workload(workload.model, base.Samples(), tiny.loss, batch_size=32)


def no_gradients():
    """A switch that was forgotten: the loss cannot be differentiated."""
    torch.set_grad_enabled(False)
    return base.healthy()
