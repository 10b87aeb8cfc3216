"""The knobs that compute in fewer bits: precision, fp8_linear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.hardware import Gpu
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import EVERYWHERE, ByLeave, Knob
from autotune.recorder.effects import Effects
from autotune.torch_settings import in_force
from autotune.torch_settings.precision import HALF, set_tf32
from autotune.torch_settings.process_settings import accumulate_in_fp16, multiply_in_fp8
from autotune.torch_settings.wrapping import autocast_forward

if TYPE_CHECKING:
    from collections.abc import Mapping


_FP8_CAPABILITY = (8, 9)
"""The lowest compute capability with FP8 products in `torch._scaled_mm` (Ada and Hopper)."""


def _candidates(context: SearchContext) -> Choices | str:
    """Types in which the device computes faster than in fp32."""
    values = context.record.precisions
    return offer(values, context.record.precision_reason, context.record.precision_reason, own=context.start.precision)


def _preferred(context: SearchContext, _: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    """None where operator overhead dominates: autocast calls even more operators."""
    return () if context.overhead_bound else (*HALF, "tf32")


def _fp8(context: SearchContext) -> Choices | str:
    """Whether linear layers compute in FP8, if the user allows it."""
    if context.device != "cuda" or (context.capability or (0, 0)) < _FP8_CAPABILITY:
        return "products of FP8 need an NVIDIA GPU of compute capability 8.9 or more"
    if not context.allow_numerics and not context.start.fp8_linear:
        return "FP8 rounds more coarsely than half precision; if that is fine, --allow-numerics searches it"
    if "torchao" not in context.facts.packages:
        return "linear layers in FP8 need torchao, which is not installed: pip install torchao"
    return Choices((False, True), "products of FP8 are up to twice as fast as those of bf16, where they are large")


def _fp8_conflict(config: TrainConfig) -> str | None:
    if not config.fp8_linear or (config.precision == "bf16" and config.is_compiled):
        return None
    return "FP8 goes with precision=bf16, and is slower than that unless the model is compiled"


def _accumulates(context: SearchContext) -> Choices | str:
    """Whether products of fp16 are added up in fp16, if the user allows it."""
    record = context.record
    if not isinstance(record, Gpu) or "GeForce" not in record.name or "fp16" not in record.precisions:
        return "only NVIDIA's GeForce cards add up in fp16 faster than in fp32"
    if not context.allow_numerics and not context.start.fp16_accumulation:
        return "sums in fp16 round coarsely and may overflow; if that is fine, --allow-numerics searches it"
    return Choices((False, True), "this card's tensor cores add up in fp16 twice as fast as in fp32")


def _accumulation_conflict(config: TrainConfig) -> str | None:
    if not config.fp16_accumulation or config.precision == "fp16":
        return None
    return "sums in fp16 go with precision=fp16"


def _as_mixed(precision: str, _: str | None) -> dict[str, Scalar] | None:
    """The argument of Lightning and Fabric; fp16 would need a scaler that the script's own loop calls."""
    return {"precision": "bf16-mixed"} if precision == "bf16" else None


KNOBS = (
    Knob(
        name="precision", scope="live", when="what the device has instructions for",
        while_training=ByLeave("products are rounded to fewer bits"),
        why="tensor cores and CPU instructions for fewer bits compute faster, and half the bytes need half the memory",
        candidates=_candidates, prefers=_preferred, priority={"gpu": 10, "cpu": 20}, guide=10,
        affects={"memory", "arithmetic", "compiled code"}, devices_of={"tf32": {"cuda"}}, on_process=set_tf32,
        trials=dict.fromkeys(("tf32", *HALF), EVERYWHERE),
        outside=autocast_forward,
        reads=in_force.products, shows=Effects.computes_in, starts_as_read=True,
        words={
            "lightning": ("precision",), "fabric": ("precision",), "transformers": ("bf16", "fp16", "tf32"),
            "accelerate": ("mixed_precision",),
        },
        written={
            "lightning": _as_mixed, "fabric": _as_mixed,
            "transformers": lambda precision, _: {precision: True} if precision in {"bf16", "tf32"} else None,
            "accelerate": lambda precision, _: {"mixed_precision": precision} if precision == "bf16" else None,
        },
    ),
    Knob(
        name="fp16_accumulation", scope="live", needs_allow_numerics=True,
        when="GeForce cards, with fp16, only with `--allow-numerics`",
        why="tensor cores of GeForce cards add up in fp16 twice as fast as in fp32 (untested: it needs such a card)",
        candidates=_accumulates, priority={"gpu": 39}, guide=96, devices={"cuda"}, conflict=_accumulation_conflict,
        meets=("precision",), affects={"arithmetic", "compiled code"}, on_process=accumulate_in_fp16,
        reads=in_force.fp16_accumulation, starts_as_read=True, trials={True: {"cuda"}},
        without_word="set for the process when training starts",
    ),
    Knob(
        name="fp8_linear", scope="process", needs_allow_numerics=True,
        when="from compute capability 8.9 on, compiled and with bf16, with torchao, only with `--allow-numerics`",
        why="large products of FP8 are up to twice as fast as those of bf16 (untested: it needs torchao)",
        candidates=_fp8, priority={"gpu": 38}, guide=95, devices={"cuda"}, conflict=_fp8_conflict,
        affects={"memory", "arithmetic", "compiled code"}, on_model=multiply_in_fp8,
        needs={True: "torchao"},
        without_word="the model's linear layers are replaced when training starts",
    ),
)  # fmt: skip
