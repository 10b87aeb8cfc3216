"""The child's side of one job: runs it and says how it ended, in one structured message.

Entered by fork from the zygote, or through `main` in a fresh interpreter where forking is not possible.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO

import psutil

from autotune.burst.protocol import Reporter, Request, claim_stdio
from autotune.errors import AutotuneError, ConfigError
from autotune.measurement import Outcome

if TYPE_CHECKING:
    from autotune.workload import Workload

_COMPILER_MODULES = ("torch._dynamo", "torch._inductor")
_OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "could not create a memory")
_SHM_TEXTS = (
    "unable to allocate shared memory",
    "unable to write to file </torch_",
    "unable to mmap",
    "No space left on device",
)


def run(request: Request, reporter: Reporter) -> None:
    """Runs one job and reports its end; never raises what belongs to the job."""
    try:
        if request.job == "probe":
            _probe(request, reporter)
        elif request.job == "check":
            _check(request, reporter)
        else:
            _burst(request, reporter)
    except AutotuneError as error:
        reporter.error(error)
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, SystemExit too
        outcome, reason = classify(error)
        reporter.failure(outcome, reason)


def classify(error: BaseException, *, compiled: bool = False, device: str = "cpu") -> tuple[Outcome, str]:
    """The outcome that an exception in a burst stands for, and a sentence that names it.

    torch raises most failures as plain RuntimeErrors, so for those there is only the text to go by.

    Args:
        error: What ended the burst.
        compiled: Whether the config compiles, so that a failure in the compiler is the config's.
        device: The device kind; host memory that runs out under a GPU is ``host_oom``.
    """
    from autotune.burst.trainer import NonFiniteLossError

    chain = _chain(error)
    for cause in chain:
        if (outcome := _resource_outcome(cause, device)) is not None:
            return outcome, _sentence(cause)
        if isinstance(cause, NonFiniteLossError):
            return Outcome.INVALID, str(cause)
    from_compiler = compiled and any(type(cause).__module__.startswith(_COMPILER_MODULES) for cause in chain)
    if from_compiler or isinstance(error, (ConfigError, NotImplementedError)):
        return Outcome.UNSUPPORTED, _sentence(error)
    return Outcome.CRASHED, _sentence(error)


def _resource_outcome(error: BaseException, device: str) -> Outcome | None:
    """Which resource ran out, if one did."""
    import torch

    from autotune.burst.trainer import WorkerKilledError

    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return Outcome.OOM
    if isinstance(error, MemoryError) or any(part in text for part in _OUT_OF_MEMORY_TEXTS):
        return Outcome.OOM if device == "cpu" else Outcome.HOST_OOM
    if (isinstance(error, WorkerKilledError) and error.bus_error) or any(part in text for part in _SHM_TEXTS):
        return Outcome.SHM_EXHAUSTED
    return None


def _sentence(error: BaseException) -> str:
    """The error's type and the last line of its text."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[-1][:500]}"


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it."""
    chain: list[BaseException] = []
    while error is not None and len(chain) < 20:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _probe(request: Request, reporter: Reporter) -> None:
    from autotune.burst import peaks

    reporter.send("result", value=peaks.report(request.device, request.peak_seconds))


def _load(request: Request) -> Workload:
    from autotune.workload import load_workload

    return load_workload(request.target, request.point.parameters if request.point else None)


def _check(request: Request, reporter: Reporter) -> None:
    import torch

    from autotune.burst.check import check_workload
    from autotune.workload import check_signature, import_target

    check_signature(import_target(request.target), request.target, request.parameter_names)
    torch.manual_seed(request.seed)
    facts = check_workload(_load(request), request.target, request.device or "cpu")
    reporter.send("result", value=facts.model_dump(mode="json"))


def _burst(request: Request, reporter: Reporter) -> None:
    from autotune.burst.training import run_burst

    compiled = request.point is not None and request.point.config.compile_mode is not None
    try:
        measurement = run_burst(request, reporter)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        reporter.failure(*classify(error, compiled=compiled, device=request.device or "cpu"))
    else:
        reporter.send("result", value=measurement.model_dump(mode="json"))


def main() -> None:
    """Entry of a fresh interpreter: one request on standard input, events on what was standard output."""
    requests, events = claim_stdio()
    request = Request.model_validate_json(requests.readline())
    threading.Thread(target=_end_with_parent, args=(requests,), name="autotune-parent", daemon=True).start()
    run(request, Reporter(events))
    finish()


def finish() -> None:
    """Ends this process at once: what the user's code registered or left running gets no chance to hang it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(0)


def _end_with_parent(requests: BinaryIO) -> None:
    """Ends this process and its children when the parent's end of the pipe closes."""
    requests.read()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(1)
