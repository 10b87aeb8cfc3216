"""The child's side of one job: runs it and reports how it ended, in one structured message.

Entered by fork from the forkserver, or through `main` in a fresh interpreter where forking is not possible.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, NoReturn, cast

import psutil

from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.protocol import PIPE_LOST_STATUS, PipeLostError, PipeReporter, Request, claim_stdio
from autotune.bursts.jobs.rank_launcher import run_ranks
from autotune.errors import AutotuneError
from autotune.sandbox.system import end_with_parent


def run(request: Request, reporter: PipeReporter, commands: BinaryIO | None = None) -> int:
    """Runs one job and reports its end; returns the exit status, and never raises an error of the job."""
    if request.ranks == 1:
        return run_rank(request, reporter, commands)
    return _reported(request, reporter, lambda: run_ranks(request, reporter, commands, run_rank))


def run_rank(
    request: Request, reporter: PipeReporter, commands: BinaryIO | None = None, begin: Callable[[], None] = lambda: None
) -> int:
    """Runs one process's part of a job in the same way; calls `begin` first."""

    def work() -> None:
        begin()
        reporter.send("result", value=_result(request, reporter, commands))

    return _reported(request, reporter, work)


def _reported(request: Request, reporter: PipeReporter, work: Callable[[], None]) -> int:
    """Does some work, and reports errors; returns the exit status."""
    try:
        try:
            work()
        except PipeLostError:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, SystemExit too
            _report(error, request, reporter)
    except PipeLostError:
        return PIPE_LOST_STATUS
    return 0


def _report(error: BaseException, request: Request, reporter: PipeReporter) -> None:
    """Reports what ended the job: a mistake in the workload that the check found, or the outcome of a burst.

    The caller keeps the error until then: freeing what it holds may hang, since torch's loader may wait in its
    `__del__` for a lock that it held when a worker's death interrupted it.
    """
    from autotune.bursts.hosts.endings import classify

    try:
        if isinstance(error, AutotuneError) and request.job != "host":
            memory = request.job == "check" and classify(error, device=request.device or "cpu")[0].is_memory
            reporter.error(error, out_of_memory=memory)
            return
        reporter.failure(*classify(error, compiled=request.point.config.is_compiled, device=request.device or "cpu"))
    except MemoryError:
        reporter.out_of_memory()


def _result(request: Request, reporter: PipeReporter, commands: BinaryIO | None) -> Any:
    """Does a job; returns its result, which JSON can hold. It imports only the module of that job."""
    if request.job == "probe":
        from autotune.bursts.jobs import peaks_job

        return peaks_job.report(request.device, request.peak_seconds)
    if request.job == "check":
        import torch

        from autotune.bursts.jobs.look_job import check_workload
        from autotune.workload.target import check_signature, import_target, load_workload

        check_signature(import_target(request.importable), request.target, request.explored)
        torch.manual_seed(request.seed)
        workload = load_workload(request.importable)
        facts = check_workload(workload, request.target, request.device or "cpu", request.halvings)
        return facts.model_dump(mode="json")
    if request.job == "numerics":
        from autotune.bursts.jobs.numerics_job import run_agreement

        return run_agreement(request, reporter).model_dump()
    if request.job == "profile":
        from autotune.bursts.jobs.profile_job import run_profile

        return run_profile(request, reporter).model_dump(mode="json")
    if request.job == "communication":
        from autotune.bursts.jobs.communication_job import run_communication

        return {"communication_fraction": run_communication(request, reporter)}
    from autotune.bursts.jobs.host_job import run_host

    run_host(request, reporter, cast("BinaryIO", commands))
    return None


def main() -> None:
    """Entry point of a fresh interpreter: one request on standard input, events on what was standard output."""
    requests, events = claim_stdio()
    request = Request.from_line(requests.readline())
    end_with_parent(True)  # the thread below cannot do so while this process is stopped
    cleanup.children_end_with_this()
    commands, passed_on = os.pipe()
    threading.Thread(target=_end_with_parent, args=(requests, passed_on), name="autotune-parent", daemon=True).start()
    lines = os.fdopen(commands, "rb") if request.job == "host" else None
    finish(run(request, PipeReporter(events, request.number, request.out_of_memory), lines))


def finish(status: int = 0) -> NoReturn:
    """Ends this process at once: exit handlers and threads of the user's code get no chance to hang it."""
    with contextlib.suppress(Exception):  # the user's code may have closed or replaced it
        sys.stderr.flush()
    os._exit(status)


def _end_with_parent(requests: BinaryIO, commands: int) -> None:
    """Passes commands on, and ends this process and its children when the parent's end of the pipe closes."""
    while line := requests.readline():
        os.write(commands, json.loads(line)["command"].encode() + b"\n")
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(1)
