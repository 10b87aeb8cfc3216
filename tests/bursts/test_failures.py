"""What ended a burst, by what it raised: torch says most of it in plain RuntimeErrors, so the text decides."""

from __future__ import annotations

import pytest
from torch._utils import ExceptionWrapper

from autotune.bursts.hosts.endings import NO_THREAD, burst_from, classify
from autotune.bursts.hosts.protocol import Request
from autotune.bursts.hosts.running_job import Ended
from autotune.bursts.runner import ProcessRunner
from autotune.errors import WorkloadError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from autotune.timing.failing import PINNING
from tests.spaces import make_facts

OUT_OF_MEMORY = [
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "CUDA driver error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "GET was unable to find an engine to execute this computation",
    "NCCL error in: unhandled cuda error\nLast error:\nFailed to CUDA calloc 6291456 bytes",
    "NCCL error in: ncclUnhandledCudaError\nLast error:\nCuda failure 2 'out of memory'",
    "NCCL WARN Cuda failure 'out of memory'",
    "Triton Error [CUDA]: out of memory",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "MPS backend out of memory (MPS allocated: 8.80 GB, other allocations: 2.02 GB, max allowed: 10.20 GB)",
]
"""As torch and the libraries below it write them: messages of users' reports, shortened."""


@pytest.mark.parametrize("text", OUT_OF_MEMORY)
def test_a_gpus_memory_that_ran_out_is_told_as_that(text: str) -> None:
    """Only torch's own allocator raises a type of its own; on small cards the libraries are often first."""
    outcome, reason = classify(RuntimeError(text), device="cuda")
    assert outcome is Outcome.OOM
    assert reason.startswith("RuntimeError: ")


def test_a_batch_that_cannot_be_pinned_says_nothing_about_the_gpus_memory() -> None:
    """WSL 2 reports it as such, from the loader's own thread: no batch is too large because of it."""
    try:
        raise RuntimeError("CUDA error: out of memory")
    except RuntimeError:
        wrapped = ExceptionWrapper(where="in pin memory thread for device 0")
    with pytest.raises(RuntimeError) as raised:
        wrapped.reraise()
    outcome, reason = classify(raised.value, device="cuda")
    assert outcome is Outcome.HOST_OOM
    assert reason.startswith(PINNING)


def test_other_errors_of_the_gpu_are_crashes() -> None:
    """An illegal address is a mistake, not a lack of memory."""
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert classify(error, device="cuda")[0] is Outcome.CRASHED


def test_what_a_gpus_library_says_means_nothing_on_a_cpu() -> None:
    """There, only the host's memory can run out."""
    assert classify(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))[0] is Outcome.CRASHED


NO_THREAD_ENDS = [
    Ended(status=1, stderr_tail="libgomp: Thread creation failed: Resource temporarily unavailable"),
    Ended(status=-11, stderr_tail="libgomp: Thread creation failed: Resource temporarily unavailable"),
    Ended(
        status=-6,
        stderr_tail="OMP: Error #34: System unable to allocate necessary resources for OMP thread:\n"
        "OMP: System error #11: Resource temporarily unavailable\n"
        "OMP: Hint Try decreasing the value of OMP_NUM_THREADS.",
    ),
]
"""How a process ends in which OpenMP can start no thread: GNU's exits, sometimes into a crash, LLVM's aborts."""


class Scripted:
    """Stands for `Isolation`: its jobs end one after another as given."""

    target = "train:build"
    fork_unsafe_reason = None

    def __init__(self, *ends: Ended) -> None:
        self._ends = list(ends)

    def run(self, request: Request, deadline_seconds: float) -> Ended:
        return self._ends.pop(0)


@pytest.mark.parametrize("ended", NO_THREAD_ENDS)
def test_a_thread_that_cannot_start_has_two_possible_causes(ended: Ended) -> None:
    """The system has one error for too little memory and too many threads: a crash, whose reason names both."""
    burst = burst_from(Point(config=TrainConfig(batch_size=8)), ended)
    assert burst.outcome is Outcome.CRASHED
    assert NO_THREAD in (burst.reason or "")
    with pytest.raises(WorkloadError, match="a limit on processes and threads"):
        ProcessRunner(Scripted(ended), "cpu").check(60)  # type: ignore[arg-type]


@pytest.mark.parametrize("ended", NO_THREAD_ENDS)
def test_where_memory_has_run_out_a_thread_that_cannot_start_is_short_of_it_too(ended: Ended) -> None:
    """The check of a workload then goes on to a smaller batch."""
    short = Ended(status=0, message={"event": "error", "out_of_memory": True})
    found = Ended(status=0, message={"event": "result", "value": make_facts().model_dump(mode="json")})
    runner = ProcessRunner(Scripted(short, ended, found), "cpu")  # type: ignore[arg-type]
    assert runner.check(60).baseline == make_facts().baseline
