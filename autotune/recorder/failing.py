"""What an error of the user's code stands for: which resource ran out, if one did, and one line that names it."""

from __future__ import annotations

import os

OUT_OF_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "std::bad_alloc", "could not create a memory")
DEVICE_OUT_OF_MEMORY_TEXTS = (
    "error: out of memory", "_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED",
    "unable to find an engine to execute", "backend out of memory", "hipErrorOutOfMemory", "cudaErrorMemoryAllocation",
    "Failed to CUDA calloc", "Failed to CUDA host alloc", "out of memory on device",
)  # fmt: skip
"""Of what a GPU's libraries say when its memory has run out under them: only torch's own allocator says it by a type.
cuBLAS cannot make its handle then; cuDNN finds no engine whose workspace fits; NCCL's buffers are "calloc"."""
SHARED_MEMORY_TEXTS = ("unable to allocate shared memory", "unable to write to file </torch_", "unable to mmap")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps it, not a place for files of ours
_FULL_BYTES = 2**20
_COMPILER_MODULES = ("torch._dynamo", "torch._inductor")
_MOST_CAUSES = 20
_LONGEST_LINE = 500
_TELLING_LENGTH = 12
"""Characters: a shorter first line, such as "Failed" or "CUDA error", says next to nothing. Chosen."""


class PlayerError(Exception):
    """What a player does wrong, as this process sees it by itself."""

    outcome = "crashed"


class NotSavedError(EOFError):
    """A script reads a checkpoint that it has saved, which bursts leave out."""


def outcome_of(
    error: BaseException, device: str, *, compiled: bool = True, unsupported: tuple[type[BaseException], ...] = ()
) -> tuple[str, str]:
    """The outcome that an error stands for, in the parent's words, and a sentence that names it.

    Args:
        error: What ended a player.
        device: The device kind; host memory that runs out under a GPU is ``host_oom``.
        compiled: Whether the config compiles, so that a failure in the compiler is the config's.
        unsupported: Further errors of a config that cannot work here.
    """
    causes = causes_of(error)
    for cause in causes:
        if isinstance(cause, PlayerError):
            return cause.outcome, str(cause)
        if (resource := exhausted(cause, device)) is not None:
            return resource, sentence_of(cause)
    from_compiler = compiled and any(map(is_of_compiler, causes))
    is_refused = from_compiler or isinstance(error, (NotImplementedError, *unsupported))
    return "unsupported" if is_refused else "crashed", sentence_of(error)


def exhausted(error: BaseException, device: str) -> str | None:
    """Which resource ran out, as an outcome: ``oom``, ``host_oom``, ``shm_exhausted``; None if none did.

    torch raises most failures as plain RuntimeErrors, so for those there is only the text to go by.

    Args:
        error: One error, without its causes.
        device: The device kind; host memory that runs out under a GPU is ``host_oom``.
    """
    import torch

    text = text_of(error)
    if isinstance(error, getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)):  # torch before 2.5
        return "oom"
    if device != "cpu" and any(part in text for part in DEVICE_OUT_OF_MEMORY_TEXTS):
        return "oom"
    if isinstance(error, MemoryError) or any(part in text for part in OUT_OF_MEMORY_TEXTS):
        return "oom" if device == "cpu" else "host_oom"
    if any(part in text for part in SHARED_MEMORY_TEXTS) or ("No space left" in text and _shared_memory_is_full()):
        return "shm_exhausted"
    return None


def is_of_compiler(error: BaseException) -> bool:
    """Whether torch's compiler raised it."""
    return type(error).__module__.startswith(_COMPILER_MODULES)


def causes_of(error: BaseException | None) -> list[BaseException]:
    """The error and what caused it."""
    found: list[BaseException] = []
    while error is not None and len(found) < _MOST_CAUSES:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def sentence_of(error: BaseException) -> str:
    """The error's type and one line of its text: the first, but of a worker's traceback the last.

    With those that follow, as long as what is told only announces them: it ends with a colon, or says next to nothing.
    So torch before 2.9 tells what the compiler raised, and torchvision which of its mirrors could not be reached.
    """
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()] or ["no message"]
    if any(line.startswith("Original Traceback") for line in lines):
        lines = lines[-1:]
    told = lines[0]
    for line in lines[1:]:
        if not told.endswith(":") and len(told) >= _TELLING_LENGTH:
            break
        told += f" {line}" if told.endswith((":", ".", "!", "?", ",", ";")) else f": {line}"
    return f"{type(error).__name__}: {told}"[: _LONGEST_LINE - 1].rstrip(": ")


def text_of(error: BaseException) -> str:
    """What the error says; nothing when even that raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own class of error
        return ""


def _shared_memory_is_full() -> bool:
    """Whether that is where no space is left, rather than on a disk that the user's code writes to."""
    try:
        there = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return False
    return there.f_bavail * there.f_frsize < _FULL_BYTES
