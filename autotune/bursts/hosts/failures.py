"""Classifies exceptions in a process that runs the user's code."""

from __future__ import annotations

from autotune.errors import ConfigError
from autotune.measuring import Outcome
from autotune.timing.failing import causes_of, exhausted, outcome_of, sentence_of


def classify(error: BaseException, *, compiled: bool = False, device: str = "cpu") -> tuple[Outcome, str]:
    """The outcome that an exception in a burst stands for, and a sentence that names it.

    Args:
        error: What ended the burst.
        compiled: Whether the config compiles, so that a failure in the compiler is the config's.
        device: The device kind; host memory that runs out under a GPU is ``host_oom``.
    """
    outcome, reason = outcome_of(error, device, compiled=compiled, unsupported=(ConfigError,))
    return Outcome(outcome), reason


def device_failed(error: BaseException) -> bool:
    """Whether a GPU refuses all further work of this process, as after an illegal access; not when it is out of memory.

    Torch names such errors by their device, and raises them at some later call.
    """
    sentences = [sentence_of(cause) for cause in causes_of(error)]  # the text of a user's error may raise itself
    failed = any("CUDA error" in text or "HIP error" in text for text in sentences)
    return failed and not any(exhausted(cause, "cuda") for cause in causes_of(error))
