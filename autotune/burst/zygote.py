"""The forkserver: imports torch and the user's module once, then forks one process for every burst.

A fork takes a fraction of what a fresh interpreter takes to import torch. Everything that could make a fork unsafe is
looked at before the first one, and reported, so that the parent can start fresh interpreters instead.

Nothing outlives the parent: each process asks the kernel to be killed with its own parent, and the zygote, into
whose care orphans fall, ends when its standard input closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import shutil
import signal
import sys
import threading
import time
from typing import BinaryIO

import psutil

from autotune.burst.protocol import Reporter, Request, claim_stdio
from autotune.errors import AutotuneError

CANARY_SECONDS = 3.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> None:
    """Entry: ``python -m autotune.burst.zygote TARGET RUN_FOLDER``; requests come as lines of JSON."""
    target, run_folder = sys.argv[1], sys.argv[2]
    requests, events = claim_stdio()
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the import of the user's module may hang
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    reporter = Reporter(events)
    unsafe = _import_all(target, reporter)
    os.register_at_fork(after_in_child=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    if unsafe is None:
        unsafe = _canary()
    prctl(_PR_SET_PDEATHSIG, 0)  # from here on the end of standard input is noticed, and cleaned up after
    reporter.send("ready", fork_unsafe_reason=unsafe)
    gc.collect()
    gc.freeze()
    try:
        _serve(requests, reporter)
    finally:
        _kill_descendants()
        shutil.rmtree(run_folder, ignore_errors=True)


def _import_all(target: str, reporter: Reporter) -> str | None:
    """Imports torch and the user's module; returns why forking is unsafe afterwards, if it is."""
    import torch._dynamo  # noqa: F401 - making an optimizer imports it, compiled or not: once here, not in every burst

    import autotune.burst.check
    import autotune.burst.loop
    import autotune.burst.training
    import autotune.burst.worker  # noqa: F401
    from autotune.workload import import_target

    if target:
        try:
            import_target(target)
        except AutotuneError as error:
            reporter.error(error)
            sys.exit(0)
    if _cuda_touched():
        return "the module initialises CUDA while it is imported"
    if len(threading.enumerate()) > 1:
        return "the module starts threads while it is imported"
    return None


def _cuda_touched() -> bool:
    """Whether the CUDA driver is open in this process: a fork after that is broken."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    # NVML, which torch asks under PYTORCH_NVML_BASED_CUDA_CHECK, leaves this one closed.
    with contextlib.suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia-uvm"):
                    return True
    return False


def _canary() -> str | None:
    """Forks a child that computes on all threads: after some imports (a used OpenMP pool) it would hang for ever."""
    if psutil.Process().num_threads() == 1:
        return None  # no native threads either: nothing that a fork could break
    pid = os.fork()
    if pid == 0:
        import torch

        matrix = torch.ones(512, 512)
        float((matrix @ matrix).exp_().sum())
        os._exit(0)
    deadline = time.monotonic() + CANARY_SECONDS
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return None
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "a forked process hangs when it computes: the module uses threads while it is imported"


def _serve(requests: BinaryIO, reporter: Reporter) -> None:
    """Forks for each request and reports each end, until the parent closes the pipe."""
    wake_read, wake_write = os.pipe()
    for descriptor in (wake_read, wake_write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    current = -1
    buffer = b""
    while True:
        readable, _, _ = select.select([requests.fileno(), wake_read], [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            status = _reap(current)
            if status is not None:
                reporter.send_after_others("exit", status=status)
        if requests.fileno() in readable:
            chunk = os.read(requests.fileno(), 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                current = _fork(line, reporter)


def _fork(line: bytes, reporter: Reporter) -> int:
    """Forks a process, in a session of its own, that runs one request; returns its id to the zygote."""
    pid = os.fork()
    if pid != 0:
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # should memory run out, the kernel is to choose this process
    from autotune.burst import worker

    worker.run(Request.model_validate_json(line), reporter)
    worker.finish()
    return 0


def _reap(current: int) -> int | None:
    """Collects every direct child and orphan that ended; returns the exit status of the current one, if it did."""
    current_status = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return current_status
        if pid == 0:
            return current_status
        if pid == current:
            current_status = os.waitstatus_to_exitcode(status)


def _kill_descendants() -> None:
    """Kills whatever is left below this process."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    main()
