"""The child's side of one job: runs it and says how it ended, in one structured message.

Entered by fork from the forkserver, or through `main` in a fresh interpreter where forking is not possible.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, BinaryIO, NoReturn, cast

import psutil

from autotune.bursts import cleanup
from autotune.bursts.launcher import run_ranks
from autotune.bursts.protocol import PIPE_LOST_STATUS, Commands, PipeLostError, Reporter, Request, claim_stdio
from autotune.errors import AutotuneError, ConfigError
from autotune.measuring import Outcome

_COMPILER_MODULES = ("torch._dynamo", "torch._inductor")
_OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "could not create a memory")
_DEVICE_OUT_OF_MEMORY_TEXTS = (
    "error: out of memory", "_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED",
    "unable to find an engine to execute", "backend out of memory", "hipErrorOutOfMemory", "cudaErrorMemoryAllocation",
    "Failed to CUDA calloc", "Failed to CUDA host alloc", "out of memory on device",
)  # fmt: skip
"""Of what a GPU's libraries say when its memory has run out under them: only torch's own allocator says it by a type.
cuBLAS cannot make its handle then; cuDNN finds no engine whose workspace fits; NCCL's buffers are "calloc"."""
_SHM_TEXTS = ("unable to allocate shared memory", "unable to write to file </torch_", "unable to mmap")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps it, not a place for files of ours
_FULL_BYTES = 2**20


def run(request: Request, reporter: Reporter, commands: Commands | None = None) -> int:
    """Runs one job and reports its end; returns the status to exit with, and never raises what belongs to the job.

    Args:
        request: The job.
        reporter: Told how far it has come, and how it ended.
        commands: What a live runner is told to do.
    """
    if request.ranks == 1:
        return run_rank(request, reporter, commands)
    return _reported(request, reporter, lambda: run_ranks(request, reporter, cast("BinaryIO", commands), run_rank))


def run_rank(
    request: Request, reporter: Reporter, commands: Commands | None = None, begin: Callable[[], None] = lambda: None
) -> int:
    """Runs what one process does of a job, likewise; `begin` comes first."""

    def work() -> None:
        begin()
        value = _run_runner(request, reporter, commands) if commands else _JOBS[request.job](request, reporter)
        reporter.send("result", value=value)

    return _reported(request, reporter, work)


def _reported(request: Request, reporter: Reporter, work: Callable[[], None]) -> int:
    """Does some work, and tells what goes wrong; returns the status to exit with."""
    try:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, SystemExit too
            _report(error, request, reporter)
    except PipeLostError:
        return PIPE_LOST_STATUS
    return 0


def _report(error: BaseException, request: Request, reporter: Reporter) -> None:
    """Tells what ended the job: a mistake in the workload that the check found, or the outcome of a burst.

    Nothing that the error holds on to is let go before: torch's loader may wait for ever, in its own `__del__`, for a
    lock that it held when a worker's death interrupted it.
    """
    try:
        if isinstance(error, AutotuneError) and request.job not in {"burst", "runner"}:
            memory = request.job == "check" and classify(error, device=request.device or "cpu")[0].is_memory
            reporter.error(error, out_of_memory=memory)
            return
        reporter.failure(*classify(error, compiled=_compiled(request), device=request.device or "cpu"))
    except MemoryError:
        reporter.out_of_memory()


def classify(error: BaseException, *, compiled: bool = False, device: str = "cpu") -> tuple[Outcome, str]:
    """The outcome that an exception in a burst stands for, and a sentence that names it.

    torch raises most failures as plain RuntimeErrors, so for those there is only the text to go by.

    Args:
        error: What ended the burst.
        compiled: Whether the config compiles, so that a failure in the compiler is the config's.
        device: The device kind; host memory that runs out under a GPU is ``host_oom``.
    """
    from autotune.bursts.ranks import RanksDifferError
    from autotune.bursts.trainer import NonFiniteLossError

    chain = _chain(error)
    for cause in chain:
        if (outcome := _resource_outcome(cause, device)) is not None:
            return outcome, _sentence(cause)
        if isinstance(cause, (NonFiniteLossError, RanksDifferError)):
            return Outcome.INVALID, str(cause)
    from_compiler = compiled and any(type(cause).__module__.startswith(_COMPILER_MODULES) for cause in chain)
    if from_compiler or isinstance(error, (ConfigError, NotImplementedError)):
        return Outcome.UNSUPPORTED, _sentence(error)
    return Outcome.CRASHED, _sentence(error)


def _resource_outcome(error: BaseException, device: str) -> Outcome | None:
    """Which resource ran out, if one did."""
    import torch

    from autotune.bursts.trainer import WorkerKilledError

    text = _text(error)
    if isinstance(error, torch.OutOfMemoryError):
        return Outcome.OOM
    if device != "cpu" and any(part in text for part in _DEVICE_OUT_OF_MEMORY_TEXTS):
        return Outcome.OOM
    if isinstance(error, MemoryError) or any(part in text for part in _OUT_OF_MEMORY_TEXTS):
        return Outcome.OOM if device == "cpu" else Outcome.HOST_OOM
    full = any(part in text for part in _SHM_TEXTS) or ("No space left" in text and _shared_memory_is_full())
    if full or (isinstance(error, WorkerKilledError) and error.bus_error):
        return Outcome.SHM_EXHAUSTED
    return None


def _shared_memory_is_full() -> bool:
    """Whether that is where no space is left, rather than on a disk that the user's code writes to."""
    try:
        there = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    return there.f_bavail * there.f_frsize < _FULL_BYTES


def _sentence(error: BaseException) -> str:
    """The error's type and one line of its text: the first, but of a worker's traceback the last.

    With the second where the first only announces it, as torch before 2.9 tells what the compiler raised.
    """
    lines = _text(error).strip().splitlines() or ["no message"]
    if any(line.startswith("Original Traceback") for line in lines):
        lines = lines[-1:]
    told = " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {told[:500]}"


def _text(error: BaseException) -> str:
    """What the error says; nothing when even that raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own class of error
        return ""


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it."""
    chain: list[BaseException] = []
    while error is not None and len(chain) < 20:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _probe(request: Request, _reporter: Reporter) -> dict[str, Any]:
    from autotune.bursts import peaks_job as peaks

    return peaks.report(request.device, request.peak_seconds)


def _check(request: Request, _reporter: Reporter) -> dict[str, Any]:
    import torch

    from autotune.bursts.check_job import check_workload
    from autotune.workload.target import check_signature, import_target, load_workload

    check_signature(import_target(request.importable), request.target, request.parameter_names)
    torch.manual_seed(request.seed)
    workload = load_workload(request.importable)
    facts = check_workload(workload, request.target, request.device or "cpu", request.halvings)
    return facts.model_dump(mode="json")


def _burst(request: Request, reporter: Reporter) -> dict[str, Any]:
    from autotune.bursts.burst_job import run_burst

    return run_burst(request, reporter).model_dump(mode="json")


def _run_runner(request: Request, reporter: Reporter, commands: Commands) -> dict[str, Any] | None:
    from autotune.bursts.runner_job import run_runner

    measured = run_runner(request, reporter, commands)
    return measured.model_dump(mode="json") if measured is not None else None


def _numerics(request: Request, reporter: Reporter) -> dict[str, Any]:
    from autotune.bursts.numerics_job import run_agreement

    return run_agreement(request, reporter).model_dump()


def _profile(request: Request, reporter: Reporter) -> dict[str, Any]:
    from autotune.bursts.profile_job import run_profile

    return run_profile(request, reporter).model_dump(mode="json")


def _communication(request: Request, reporter: Reporter) -> dict[str, Any]:
    from autotune.bursts.communication_job import run_communication

    return {"communication_fraction": run_communication(request, reporter)}


def _compiled(request: Request) -> bool:
    return request.point is not None and request.point.config.compile_mode is not None


_JOBS: dict[str, Callable[[Request, Reporter], dict[str, Any]]] = {
    "probe": _probe,
    "check": _check,
    "burst": _burst,
    "numerics": _numerics,
    "profile": _profile,
    "communication": _communication,
}


def main() -> None:
    """Entry of a fresh interpreter: one request on standard input, events on what was standard output."""
    requests, events = claim_stdio()
    request = Request.from_line(requests.readline())
    cleanup.end_with_parent(True)  # the thread below cannot see to it while this process is stopped
    cleanup.children_end_with_this()
    lines = _Lines()
    threading.Thread(target=_end_with_parent, args=(requests, lines), name="autotune-parent", daemon=True).start()
    finish(run(request, Reporter(events, request.number), lines if request.job == "runner" else None))


def finish(status: int = 0) -> NoReturn:
    """Ends this process at once: what the user's code registered or left running gets no chance to hang it."""
    with contextlib.suppress(Exception):  # the user's code may have closed or replaced it
        sys.stderr.flush()
    os._exit(status)


class _Lines:
    """Commands that a thread has read."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[bytes] = SimpleQueue()

    def readline(self) -> bytes:
        """Waits for the next line."""
        return self._queue.get()

    def put(self, line: bytes) -> None:
        """Hands a line over."""
        self._queue.put(line)


def _end_with_parent(requests: BinaryIO, lines: _Lines) -> None:
    """Hands commands on, and ends this process and its children when the parent's end of the pipe closes."""
    while line := requests.readline():
        lines.put(json.loads(line)["command"].encode())
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(1)
