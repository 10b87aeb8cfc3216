"""The forkserver: imports torch and the user's module once, then forks one process for every burst.

A fork takes a fraction of what a fresh interpreter takes to import torch. Everything that could make a fork unsafe is
looked at before the first one, and reported; the parent then starts a cold forkserver, which imports nothing, so that
each burst begins as a fresh interpreter and yet has a parent that adopts what it leaves behind.

Nothing outlives the command: a burst asks the kernel to be killed with its forkserver, and the forkserver, into whose
care orphans fall, ends when its standard input closes or its parent changes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from json import loads  # by name: the user's module may replace what `json` holds
from time import monotonic, sleep, time  # by name: the user's module may replace what `time` holds
from typing import Any, BinaryIO

import psutil

from autotune.bursts import cleanup, worker
from autotune.bursts.protocol import Reporter, Request, claim_stdio
from autotune.errors import AutotuneError
from autotune.sandbox.view import remove_folder

CANARY_SECONDS = 3.0
PARENT_CHECK_SECONDS = 1.0


def main() -> None:
    """Entry: the target, the run's folder, the parent's process id, and ``warm`` or ``cold``."""
    target, run_folder, parent, mode = sys.argv[1:5]
    started = time()
    requests, events = claim_stdio()
    cleanup.end_with_parent(True)  # the import of the user's module may hang
    if os.getppid() != int(parent):  # it died before the kernel was asked
        worker.finish()
    cleanup.adopt_orphans()
    own = os.getpid()
    try:
        reporter = Reporter(events)
        unsafe = _import_all(target, reporter) if mode == "warm" else None
        if os.getpid() != own:  # the module has forked: this is its copy, and no forkserver
            os._exit(0)
        users_handler: Any = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were it ignored, no status would come
        if mode == "warm" and unsafe is None:
            unsafe = _canary()
        cleanup.end_with_parent(False)  # from here on the end of standard input is noticed, and cleaned up after
        reporter.send("ready", fork_unsafe_reason=unsafe)
        gc.collect()
        gc.freeze()
        _Server(requests, events, reporter, int(parent), users_handler).serve()
    except AutotuneError as error:
        reporter.error(error)
    except BaseException:  # noqa: BLE001 - an import may raise anything; the last that is printed is told
        traceback.print_exc()
    finally:  # at once: what the user's module registered for the end may hang
        here = psutil.Process()
        cleanup.end_processes(lambda: cleanup.descendants(here))
        cleanup.remove_shared_memory(started)
        remove_folder(run_folder)
        worker.finish()


def _import_all(target: str, reporter: Reporter) -> str | None:
    """Imports torch, tells it, and the user's module; returns why forking is unsafe afterwards, if it is."""
    import torch._dynamo  # noqa: F401 - making an optimizer imports it, compiled or not: once here, not in every burst

    # What bursts run is imported once here too, and before the user's module can replace what it imports.
    from autotune.bursts import check_job, failures, host_job  # noqa: F401
    from autotune.workload.target import import_target

    reporter.send("torch")
    if target:
        import_target(target)
    if _cuda_touched():
        return "the module initialises CUDA while it is imported"
    if len(threading.enumerate()) > 1:
        return "the module starts threads while it is imported"
    if psutil.Process().children():
        return "the module starts processes while it is imported"
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
        try:
            import torch

            cleanup.end_with_parent(True)
            matrix = torch.ones(512, 512)
            float((matrix @ matrix).exp_().sum())
            os._exit(0)
        finally:
            os._exit(1)
    deadline = monotonic() + CANARY_SECONDS
    while monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return None if status == 0 else "a forked process fails when it computes"
        sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "a forked process hangs when it computes: the module uses threads while it is imported"


@dataclass(frozen=True)
class _Job:
    """A job that runs: its number, and where its commands are written, if it takes any."""

    number: int
    commands: int | None = None


class _Server:
    """Forks for each request and reports each end.

    Args:
        requests: Where they come from.
        events: Where all is told.
        reporter: Tells it for this process.
        parent: The process that asks.
        users_handler: What the user's module wants done at SIGCHLD, in its bursts.
    """

    def __init__(
        self, requests: BinaryIO, events: BinaryIO, reporter: Reporter, parent: int, users_handler: Any
    ) -> None:
        self._requests = requests
        self._events = events
        self._reporter = reporter
        self._parent = parent
        self._jobs: dict[int, _Job] = {}
        self._wake = os.pipe()
        for descriptor in self._wake:
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        self._users_handler = users_handler
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Serves until the parent closes the pipe, or has died with the pipe held open by others."""
        buffer = b""
        while os.getppid() == self._parent:
            readable, _, _ = select.select([self._requests.fileno(), self._wake[0]], [], [], PARENT_CHECK_SECONDS)
            if self._wake[0] in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake[0], 4096)
                self._reap()
            if self._requests.fileno() in readable:
                chunk = os.read(self._requests.fileno(), 65536)
                if not chunk:
                    return
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in lines:
                    self._obey(line)

    def _obey(self, line: bytes) -> None:
        """Starts a job, or hands a command on to one."""
        message = loads(line)
        if "to" not in message:
            self._fork(Request.model_validate(message))
            return
        for job in self._jobs.values():
            if job.number == message["to"] and job.commands is not None:
                with contextlib.suppress(OSError):  # it has gone, which shows in its exit
                    os.write(job.commands, message["command"].encode() + b"\n")

    def _reap(self) -> None:
        """Collects every direct child and orphan that ended; reports the job's own process."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if (job := self._jobs.pop(pid, None)) is not None:
                    if job.commands is not None:
                        os.close(job.commands)
                    self._reporter.end_of(job.number, os.waitstatus_to_exitcode(status))

    def _fork(self, request: Request) -> None:
        """Forks a process, in a session of its own, that runs one request."""
        ends = os.pipe() if request.job == "host" else None
        pid = os.fork()
        if pid != 0:
            if ends is not None:
                os.close(ends[0])
            self._jobs[pid] = _Job(request.number, ends[1] if ends is not None else None)
            self._reporter.send("started", pid=pid, number=request.number)
            return
        status = 1
        try:  # whatever happens, this process must not go on as a second forkserver
            self._become_job()
            commands = None
            if ends is not None:
                os.close(ends[1])
                commands = os.fdopen(ends[0], "rb")
            status = worker.run(request, Reporter(self._events, request.number), commands)
        finally:
            worker.finish(status)

    def _become_job(self) -> None:
        """Undoes in the forked process what is the forkserver's own."""
        signal.set_wakeup_fd(-1)
        users = self._users_handler
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if users is None else users)
        self._requests.close()
        others = [job.commands for job in self._jobs.values() if job.commands is not None]
        for descriptor in (*self._wake, *others):
            os.close(descriptor)
        os.setsid()
        cleanup.end_with_parent(True)
        cleanup.children_end_with_this()
        # Cores of gigabytes, one a crash, are not what a search is asked for.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError):
            descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(descriptor, b"1000")  # should memory run out, the kernel is to choose this process
            os.close(descriptor)


if __name__ == "__main__":
    main()
