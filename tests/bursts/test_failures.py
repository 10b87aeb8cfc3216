"""What ended a burst, by what it raised: torch says most of it in plain RuntimeErrors, so the text decides."""

from __future__ import annotations

import pytest
from torch._utils import ExceptionWrapper

from autotune.bursts.hosts.endings import classify
from autotune.measuring.records import Outcome
from autotune.timing.failing import PINNING

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
