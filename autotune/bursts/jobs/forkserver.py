"""The forkserver: imports torch and the user's module once, then forks one process for every burst.

A fork takes a fraction of the time in which a fresh interpreter imports torch. Before the first fork, everything that
could make it unsafe is checked and reported. If it is unsafe, the parent starts a cold forkserver, which imports
nothing: each burst then begins as a fresh interpreter, and still has a parent that adopts the processes it leaves.

Nothing outlives the command. A burst asks the kernel to be killed with its forkserver. The forkserver adopts orphans,
and ends when its standard input closes or its parent changes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from time import time  # by name: the user's module may replace what `time` holds
from typing import Any, BinaryIO, NoReturn

import psutil

from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.protocol import PipeReporter, Request, claim_stdio
from autotune.bursts.jobs import worker
from autotune.errors import AutotuneError
from autotune.recorder.server import Server, canary, compute_on_all_threads
from autotune.sandbox.system import adopt_orphans, end_with_parent, resource
from autotune.sandbox.view import remove_folder


def main() -> None:
    """Entry point; arguments: the target, the run's folder, the parent's process id, and ``warm`` or ``cold``."""
    target, run_folder, parent, mode = sys.argv[1:5]
    started = time()
    requests, events = claim_stdio()
    end_with_parent(True)  # the import of the user's module may hang
    if os.getppid() != int(parent):  # it died before the kernel was asked
        worker.finish()
    adopt_orphans()
    own = os.getpid()
    try:
        reporter = PipeReporter(events)
        unsafe = _import_all(target, reporter) if mode == "warm" else None
        if os.getpid() != own:  # the module has forked: this is its child, not the forkserver
            os._exit(0)
        users_handler: Any = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, no exit status would arrive
        if mode == "warm" and unsafe is None:
            unsafe = _canary()
        end_with_parent(False)  # from here on, the end of standard input is noticed, followed by a clean-up
        reporter.send("ready", fork_unsafe_reason=unsafe)
        handler = signal.SIG_DFL if users_handler is None else users_handler
        job = Server(requests.fileno(), reporter, int(parent), handler).serve()
        if job is not None:
            _run_job(job[0], requests, events, job[1])
    except AutotuneError as error:
        reporter.error(error)
    except BaseException:  # noqa: BLE001 - an import may raise anything; the parent reports the last output
        traceback.print_exc()
    finally:  # at once: exit handlers of the user's module may hang
        here = psutil.Process()
        cleanup.end_processes(lambda: cleanup.descendants(here))
        cleanup.remove_shared_memory(started)
        remove_folder(run_folder)
        worker.finish()


def _import_all(target: str, reporter: PipeReporter) -> str | None:
    """Imports torch, reports that, and imports the user's module; returns why forking is then unsafe, if it is."""
    import torch._dynamo  # noqa: F401 - making an optimizer imports it, compiled or not: once here, not in every burst

    # The code of bursts is imported once here too, before the user's module can replace what it imports.
    from autotune.bursts.jobs import host_job, look_job  # noqa: F401
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
    # NVML, which torch uses under PYTORCH_NVML_BASED_CUDA_CHECK, does not open this device.
    with contextlib.suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia-uvm"):
                    return True
    return False


def _canary() -> str | None:
    """Why this process cannot be forked with its threads; None if it can."""
    if psutil.Process().num_threads() == 1:
        return None  # no native threads either: nothing that a fork could break
    ended = canary(compute_on_all_threads)
    if ended is None:
        return "a forked process hangs when it computes: the module uses threads while it is imported"
    return None if ended == 0 else "a forked process fails when it computes"


def _run_job(message: dict[str, Any], requests: BinaryIO, events: BinaryIO, commands: BinaryIO) -> NoReturn:
    """Runs one request in the process that was forked for it."""
    status = 1
    try:  # whatever happens, this process must not become a second forkserver
        requests.close()
        cleanup.children_end_with_this()
        # A search must not leave core dumps of gigabytes.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        request = Request.model_validate(message)
        reporter = PipeReporter(events, request.number, request.out_of_memory)
        status = worker.run(request, reporter, commands if request.job == "host" else None)
    finally:
        worker.finish(status)


if __name__ == "__main__":
    main()
