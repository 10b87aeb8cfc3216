"""Classifies errors of the user's code: which resource ran out, if any, and one line that describes the error."""

from __future__ import annotations

import os
import shutil
import traceback

OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "could not create a memory")
DEVICE_OUT_OF_MEMORY_TEXTS = (
    "error: out of memory", "_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED",
    "unable to find an engine to execute", "backend out of memory", "hipErrorOutOfMemory", "cudaErrorMemoryAllocation",
    "Failed to CUDA calloc", "Failed to CUDA host alloc", "out of memory on device",
    "[CUDA]: out of memory", "[HIP]: out of memory", "'out of memory'", "DEVICE_ALLOCATION_FAILED",
)  # fmt: skip
"""Texts of a GPU's libraries when its memory runs out: only torch's own allocator has an error type for that. Then
cuBLAS cannot make its handle, and cuDNN finds no engine whose workspace fits. NCCL calls its buffers "calloc" or quotes
CUDA, and Triton names CUDA in brackets."""
PINNING = "pinning host memory"
"""How the reason begins where a batch could not be pinned. WSL 2 reports that as ``CUDA error: out of memory``."""
_PINNING_FILE = os.path.join("_utils", "pin_memory.py")
SHARED_MEMORY_TEXTS = ("unable to allocate shared memory", "unable to write to file </torch_", "unable to mmap")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps it, not a place for files of ours
_FULL_BYTES = 2**20
_COMPILER_MODULES = ("torch._dynamo", "torch._inductor")
_MOST_CAUSES = 20
_LONGEST_LINE = 500
_SHORT_LENGTH = 12
"""Characters. A shorter first line, such as "Failed" or "CUDA error", says too little. Not tuned."""


class PlayerError(Exception):
    """A player's failure that this process detects itself."""

    outcome = "crashed"


class NotSavedError(EOFError):
    """A script reads a checkpoint that it has saved; bursts do not write checkpoints."""


def outcome_of(
    error: BaseException, device: str, *, compiled: bool = True, unsupported: tuple[type[BaseException], ...] = ()
) -> tuple[str, str]:
    """Returns the outcome of an error, in the parent's words, and a sentence that describes it.

    Args:
        error: The error that ended a player.
        device: The device kind. If it is a GPU, host memory that runs out is ``host_oom``.
        compiled: Whether the config compiles: then it is responsible for failures in the compiler.
        unsupported: Further errors of a config that cannot work here.
    """
    causes = causes_of(error)
    for cause in causes:
        if isinstance(cause, PlayerError):
            return cause.outcome, str(cause)
        if (resource := exhausted(cause, device)) is not None:
            if device != "cpu" and _is_of_pinning(cause):
                return "host_oom", f"{PINNING}: {sentence_of(cause)}"
            return resource, sentence_of(cause)
    from_compiler = compiled and any(map(is_of_compiler, causes))
    is_refused = from_compiler or isinstance(error, (NotImplementedError, *unsupported))
    return "unsupported" if is_refused else "crashed", sentence_of(error)


def exhausted(error: BaseException, device: str) -> str | None:
    """Which resource ran out, as an outcome: ``oom``, ``host_oom``, ``shm_exhausted``; None if none did.

    torch raises most failures as plain RuntimeErrors, which differ only by their text.

    Args:
        error: One error, without its causes.
        device: The device kind. If it is a GPU, host memory that runs out is ``host_oom``.
    """
    import torch

    text = text_of(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "oom"
    if device != "cpu" and any(part in text for part in DEVICE_OUT_OF_MEMORY_TEXTS):
        return "oom"
    if isinstance(error, MemoryError) or any(part in text for part in OUT_OF_MEMORY_TEXTS):
        return "oom" if device == "cpu" else "host_oom"
    if any(part in text for part in SHARED_MEMORY_TEXTS) or ("No space left" in text and _shared_memory_is_full()):
        return "shm_exhausted"
    return None


def _is_of_pinning(error: BaseException) -> bool:
    """Whether it was raised where a loader pins a batch: in a thread of its own, or in the one that draws."""
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    return "pin memory thread" in text_of(error) or any(file.endswith(_PINNING_FILE) for file in files)


def is_of_compiler(error: BaseException) -> bool:
    """Whether torch's compiler raised it."""
    return type(error).__module__.startswith(_COMPILER_MODULES)


def causes_of(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it."""
    causes: list[BaseException] = []
    while error is not None and len(causes) < _MOST_CAUSES:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def sentence_of(error: BaseException) -> str:
    """The error's type and the first line of its text; of a worker's traceback, the last line.

    Further lines follow while the sentence is very short or ends with a colon. So torch before 2.9 shows what the
    compiler raised, and torchvision shows which of its mirrors could not be reached.
    """
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()] or ["no message"]
    if any(line.startswith("Original Traceback") for line in lines):
        name, _, rest = lines[-1].partition(": ")  # torch raises it again, mostly as the same type
        lines = [rest if rest and name.rpartition(".")[-1] == type(error).__name__ else lines[-1]]
    sentence = lines[0]
    for line in lines[1:]:
        if not sentence.endswith(":") and len(sentence) >= _SHORT_LENGTH:
            break
        sentence += f" {line}" if sentence.endswith((":", ".", "!", "?", ",", ";")) else f": {line}"
    return f"{type(error).__name__}: {sentence}"[: _LONGEST_LINE - 1].rstrip(": ")


def text_of(error: BaseException) -> str:
    """The error's message; empty if even reading it raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own class of error
        return ""


def _shared_memory_is_full() -> bool:
    """Whether shared memory is full, rather than a disk that the user's code writes to."""
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free < _FULL_BYTES
    except OSError:
        return False
