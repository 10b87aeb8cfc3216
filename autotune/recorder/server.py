"""Forks a process for each job from a prepared one, so that start-up is paid once.

A script that has reached its training loop uses it, and the forkserver of a `build()`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import threading
import traceback
from collections.abc import Callable
from json import loads  # by name: the user's module may replace what `json` holds
from time import monotonic, sleep
from typing import Any, BinaryIO

from ..sandbox.system import children_of, end_with_parent, stat_of, why_no_fork
from ..timing.wire import Reporter
from .tokenizing import why_tokenizers_forbid

CANARY_SECONDS, CUDA_CANARY_SECONDS = 3.0, 60.0
"""Time limits for a forked process to compute, and to open CUDA, which takes seconds on machines with many GPUs. Not
tuned."""
PARENT_CHECK_SECONDS = 1.0


def unsafe_reason(try_out: Callable[[], None] | None = None) -> str | None:
    """Why this process cannot be forked here; None if it can.

    Args:
        try_out: Tests what else a forked process must be able to do; raises if it cannot.
    """
    import torch

    if (reason := why_no_fork()) is not None:
        return reason
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "the script has opened CUDA before its training loop"
    if (reason := reason_of_others()) is not None:
        return reason

    def compute() -> None:
        torch._C.set_num_threads(2)  # torch's own function, which may be replaced until the fork
        compute_on_all_threads()
        if try_out is not None:
            try_out()

    what = "computes" if try_out is None else "opens CUDA, which the script has touched before"
    ended = canary(compute, CANARY_SECONDS if try_out is None else CUDA_CANARY_SECONDS)
    if ended is None:
        return "a forked process hangs when it computes: the script has used threads before its training loop"
    return None if ended == 0 else f"a forked process fails when it {what}"


def reason_of_others() -> str | None:
    """Why threads or child processes keep this process from being forked; None if there are none."""
    import torch

    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return "the script has opened a process group, which runs threads"
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        return f"the script runs threads ({', '.join(others[:3])})"
    if threading.current_thread() is not threading.main_thread():
        return "the script trains in a thread of its own"
    if (reason := why_tokenizers_forbid()) is not None:
        return reason
    with contextlib.suppress(OSError):
        if any(map(_runs, children_of(os.getpid()))):
            return "the script has started processes"
    return None


def _runs(pid: int) -> bool:
    """Whether a process still runs, rather than being a zombie, as after ``os.popen("stty size")``."""
    try:
        return stat_of(pid)[0] not in {"Z", "X"}
    except OSError:
        return False


def compute_on_all_threads() -> None:
    """Computes on all threads. A forked process hangs at that forever if the OpenMP pool was used before."""
    import torch

    matrix = torch.ones(512, 512)
    float((matrix @ matrix).exp_().sum())


def canary(work: Callable[[], None], seconds: float = CANARY_SECONDS) -> int | None:
    """Forks a child that does some work; returns its status, 0 on success, or None if it hangs."""
    pid = os.fork()
    if pid == 0:
        try:
            end_with_parent(True)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


class Server:
    """Forks for each request, until there are no more.

    Args:
        requests: Descriptor of the parent's lines.
        reporter: Reports to the parent.
        parent: Id of the parent process. If it is None, only the end of its lines shows its end.
        handler: SIGCHLD handler of a forked process; None for this process's current one.
    """

    def __init__(self, requests: int, reporter: Reporter, parent: int | None = None, handler: Any = None) -> None:
        self._requests = requests
        self._reporter = reporter
        self._parent = parent
        self._jobs: dict[int, tuple[int, int]] = {}  # process id: job number, descriptor for its commands
        self._wake = os.pipe()
        for descriptor in self._wake:
            os.set_blocking(descriptor, False)
        former = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._former = handler or former or signal.SIG_DFL
        self._former_wakeup = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()

    def serve(self) -> tuple[dict[str, Any], BinaryIO] | None:
        """Serves until the parent closes the pipe, or has died while other processes hold the pipe open.

        Returns:
            In each forked process, its request and the stream of its commands; in this process, None at the end.
        """
        buffer = b""
        while self._parent in {None, os.getppid()}:
            readable, _, _ = select.select([self._requests, self._wake[0]], [], [], PARENT_CHECK_SECONDS)
            if self._wake[0] in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake[0], 4096)
                self._reap()
            if self._requests not in readable:
                continue
            chunk = os.read(self._requests, 65536)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                message = loads(line)
                if "to" in message:
                    self._hand_on(message)
                elif (commands := self._fork(message["number"])) is not None:
                    return message, commands
        return None

    def kill_jobs(self) -> None:
        """Kills all forked processes that still run."""
        for pid in self._jobs:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _hand_on(self, message: dict[str, Any]) -> None:
        for number, commands in self._jobs.values():
            if number == message["to"]:
                with contextlib.suppress(OSError):  # it has ended, which its exit status shows
                    os.write(commands, message["command"].encode() + b"\n")

    def _reap(self) -> None:
        """Collects every child and orphan that has ended; reports the end of a job's own process."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._jobs:
                    number, commands = self._jobs.pop(pid)
                    os.close(commands)
                    self._reporter.end_of(number, os.waitstatus_to_exitcode(status))

    def _fork(self, number: int) -> BinaryIO | None:
        """Forks a process for a request, in a new session. Returns the stream of its commands there, None here."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid != 0:
            os.close(reading)
            self._jobs[pid] = (number, writing)
            self._reporter.send("started", pid=pid, number=number)
            return None
        try:
            signal.set_wakeup_fd(self._former_wakeup)
            signal.signal(signal.SIGCHLD, self._former)
            for descriptor in (*self._wake, writing, *(commands for _, commands in self._jobs.values())):
                os.close(descriptor)
            os.setsid()
            end_with_parent(True)
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as score:
                score.write(b"1000")  # if memory runs out, the kernel should kill this process
            return os.fdopen(reading, "rb")
        except BaseException:  # noqa: BLE001 - this process must never continue as a second server
            traceback.print_exc()
            os._exit(1)
