"""A script that has come to its training loop, and forks a process for each burst: its start-up is paid once."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from .tokenizing import why_no_fork
from .wire import Wire, parent_has_gone

CANARY_SECONDS, CUDA_CANARY_SECONDS = 3.0, 60.0
"""For a forked process to compute, and to open CUDA besides, which takes seconds on a machine of many GPUs. Chosen."""
PARENT_CHECK_SECONDS = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def unsafe_reason(try_out: Callable[[], None] | None = None) -> str | None:
    """Why this process cannot be forked here; None when it can.

    Args:
        try_out: What a forked process must be able to do, besides computing; raises where it is not.
    """
    import torch

    if sys.platform != "linux":
        return f"{sys.platform} has no safe fork"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "the script has opened CUDA before its training loop"
    return reason_of_others() or _canary(try_out)


def reason_of_others() -> str | None:
    """Why this process cannot be forked: threads and processes that a fork would not have; None when it can."""
    import torch

    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return "the script has opened a process group, which runs threads"
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        return f"the script runs threads ({', '.join(others[:3])})"
    if threading.current_thread() is not threading.main_thread():
        return "the script trains in a thread of its own"
    if (reason := why_no_fork()) is not None:
        return reason
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as listed:
        if any(map(_runs, listed.read().split())):
            return "the script has started processes"
    return None


def _runs(pid: str) -> bool:
    """Whether a process has not ended: nobody may have asked yet how it did, as after ``os.popen("stty size")``."""
    try:
        with open(f"/proc/{pid}/stat") as told:
            return told.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _canary(try_out: Callable[[], None] | None) -> str | None:
    """Forks a child that computes on all threads: after a used OpenMP pool it would hang for ever."""
    import torch

    pid = os.fork()
    if pid == 0:
        try:
            torch._C.set_num_threads(2)  # torch's own, whatever stands in its place until the fork
            matrix = torch.ones(512, 512)
            float((matrix @ matrix).exp_().sum())
            if try_out is not None:
                try_out()
            os._exit(0)
        finally:
            os._exit(1)
    deadline = monotonic() + (CANARY_SECONDS if try_out is None else CUDA_CANARY_SECONDS)
    while monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            what = "computes" if try_out is None else "opens CUDA, which the script has touched before"
            return None if status == 0 else f"a forked process fails when it {what}"
        sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "a forked process hangs when it computes: the script has used threads before its training loop"


def serve(wire: Wire, unsafe: str | None) -> tuple[Wire, dict[str, Any]]:
    """Forks for each request; returns in each forked process alone, with its own wire and its request."""
    if unsafe is not None:
        while wire.channel.recv(4096):
            pass
        parent_has_gone()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()
    return _Server(wire).serve()


class _Server:
    """Serves until the parent closes the socket.

    Args:
        wire: To the parent.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._jobs: dict[int, tuple[int, int]] = {}  # process: number, where its commands are written
        self._wake = os.pipe()
        for descriptor in self._wake:
            os.set_blocking(descriptor, False)
        self._former = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._former_wakeup = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)

    def serve(self) -> tuple[Wire, dict[str, Any]]:
        buffer = b""
        channel = self._wire.channel
        while True:
            readable, _, _ = select.select([channel.fileno(), self._wake[0]], [], [], PARENT_CHECK_SECONDS)
            if self._wake[0] in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake[0], 4096)
                self._reap()
            if channel.fileno() not in readable:
                continue
            chunk = channel.recv(65536)
            if not chunk:
                self._end()
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "to" in message:
                    self._hand_on(message)
                elif (job := self._fork(message)) is not None:
                    return job

    def _hand_on(self, message: dict[str, Any]) -> None:
        for number, commands in self._jobs.values():
            if number == message["to"]:
                with contextlib.suppress(OSError):  # it has gone, which shows in its exit
                    os.write(commands, message["command"].encode() + b"\n")

    def _reap(self) -> None:
        """Collects whoever ended; tells the end of a job's own process."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._jobs:
                    number, commands = self._jobs.pop(pid)
                    os.close(commands)
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    # Perhaps it died in the middle of a line.
                    self._wire.channel.sendall(b"\n")
                    self._wire.send("exit", number=number, status=code)

    def _fork(self, request: dict[str, Any]) -> tuple[Wire, dict[str, Any]] | None:
        """A process for a request: what it goes on with there, None here."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid != 0:
            os.close(reading)
            self._jobs[pid] = (request["number"], writing)
            self._wire.send("started", pid=pid, number=request["number"])
            return None
        signal.set_wakeup_fd(self._former_wakeup)
        signal.signal(signal.SIGCHLD, self._former if self._former is not None else signal.SIG_DFL)
        for descriptor in (*self._wake, writing, *(commands for _, commands in self._jobs.values())):
            os.close(descriptor)
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb") as score:
            score.write(b"1000")  # should memory run out, the kernel is to choose this process
        return Wire(self._wire.channel, request["number"], os.fdopen(reading, "rb")), request

    def _end(self) -> None:
        """The parent has gone, or wants no more."""
        for pid in self._jobs:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        parent_has_gone()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)
