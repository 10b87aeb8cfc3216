"""The knob of what computes in fewer bits: precision."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from autotune.knobs.circumstances import Choices, Circumstances, offer
from autotune.knobs.config import Scalar
from autotune.knobs.knob import Knob

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

HALF = ("bf16", "fp16")
"""Precisions of 16 bits: autocast computes in them."""


def torch_dtype(precision: str) -> torch.dtype:
    """The type that matrices are multiplied in; tf32 is a way to multiply fp32."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """``torch.autocast``; does nothing for fp32 and tf32."""
    import torch

    return torch.autocast(device.type, dtype=torch_dtype(precision)) if precision in HALF else contextlib.nullcontext()


def _candidates(of: Circumstances) -> Choices | str:
    """What the device computes faster than fp32."""
    values = of.record.precisions
    return offer(values, of.record.precision_reason, of.record.precision_reason, own=of.start.precision)


def _preferred(of: Circumstances, _: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    """None where calling operators is most of the work: autocast calls more of them still."""
    return () if of.overhead_bound else (*HALF, "tf32")


def _in_force(device: torch.device) -> Scalar | None:
    """TF32, where the user's module has allowed it for matrix products, by either interface."""
    import torch

    if device.type != "cuda":
        return None
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", "none") == "tf32"
    return "tf32" if newer or matmul_precision() in {"high", "medium"} else None


def matmul_precision() -> str | None:
    """What the older interface says; None where torch refuses to, the newer one having been used as well."""
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_tf32(precision: str, device: torch.device) -> None:
    """TF32 for matmul and convolution, or none for matmul; convolutions have it by torch's own default.

    Beside half precision, what is left in fp32 computes as the user's module has set it.

    By the older interface on purpose: after the newer one alone (``fp32_precision``), reading the matmul precision, as
    Inductor does, raises; after this one both can be read, whichever of them the user's code has set before.
    """
    import torch

    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    elif precision == "fp32" and device.type == "cuda" and matmul_precision() != "highest":
        torch.set_float32_matmul_precision("highest")


KNOBS = (
    Knob(
        name="precision", when="what the device has instructions for",
        why="tensor cores and CPU instructions for fewer bits compute faster, and half the bytes need half the memory",
        candidates=_candidates, prefers=_preferred, priority={"gpu": 10, "cpu": 20}, guide=10,
        affects={"memory", "arithmetic", "compiled code"}, devices_of={"tf32": {"cuda"}}, on_process=_set_tf32,
        in_force=_in_force,
        words={
            "lightning": ("precision",), "fabric": ("precision",), "transformers": ("bf16", "fp16", "tf32"),
            "accelerate": ("mixed_precision",),
        },
    ),
)  # fmt: skip
