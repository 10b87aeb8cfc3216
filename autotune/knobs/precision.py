"""The knob of what computes in fewer bits: precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.knobs.circumstances import Choices, Circumstances, offer
from autotune.knobs.config import Scalar
from autotune.knobs.knob import Knob
from autotune.recorder.telling import HALF, autocast_forward, matmul_precision, set_tf32

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


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


KNOBS = (
    Knob(
        name="precision", when="what the device has instructions for",
        why="tensor cores and CPU instructions for fewer bits compute faster, and half the bytes need half the memory",
        candidates=_candidates, prefers=_preferred, priority={"gpu": 10, "cpu": 20}, guide=10,
        affects={"memory", "arithmetic", "compiled code"}, devices_of={"tf32": {"cuda"}}, on_process=set_tf32,
        outside=autocast_forward,
        in_force=_in_force,
        words={
            "lightning": ("precision",), "fabric": ("precision",), "transformers": ("bf16", "fp16", "tf32"),
            "accelerate": ("mixed_precision",),
        },
    ),
)  # fmt: skip
