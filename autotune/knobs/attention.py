"""The knob that picks the kernel of scaled dot-product attention: sdpa_backend."""

from __future__ import annotations

from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import Knob
from autotune.recorder.effects import Effects
from autotune.torch_settings import in_force
from autotune.torch_settings.precision import HALF
from autotune.torch_settings.process_settings import restrict_attention

_LATER = {"flash_attention_3": ("flash_attn_interface", (9,)), "flash_attention_4": ("flash_attn.cute", (9, 10))}
"""The package of each later FlashAttention, and the major compute capabilities that torch uses it for."""
_HALF_ONLY = ("flash_attention", "cudnn_attention", *_LATER)


def _candidates(context: SearchContext) -> Choices | str:
    """Kernels for attention."""
    if not context.facts.has_attention:
        return "the model computes no scaled dot-product attention"
    if context.device not in {"cuda", "rocm"}:
        return f"attention has only one implementation for {context.device}"
    half = {*HALF} & {*context.record.precisions, context.start.precision}
    values: list[Scalar] = ["default", "efficient_attention"]
    if half and (context.device == "rocm" or (context.capability or (0, 0)) >= (8, 0)):
        values.append("flash_attention")
        if context.device == "cuda":
            values.append("cudnn_attention")
            major = (context.capability or (0, 0))[0]
            values += [
                value for value, (package, on) in _LATER.items() if major in on and package in context.facts.packages
            ]
    return offer(values, "which kernel of attention is fastest depends on its shapes", own=context.start.sdpa_backend)


def _conflict(config: TrainConfig) -> str | None:
    if config.sdpa_backend not in _HALF_ONLY or config.precision in HALF:
        return None
    return f"{config.sdpa_backend} computes in {' or '.join(HALF)} only, not in {config.precision}"


KNOBS = (
    Knob(
        name="sdpa_backend", scope="live", while_training="neutral",
        when="CUDA and ROCm, where scaled dot-product attention runs",
        why="which kernel of attention is fastest depends on its shapes",
        candidates=_candidates, priority={"gpu": 70}, guide=120, conflict=_conflict,
        affects={"memory", "arithmetic", "compiled code"}, on_process=restrict_attention,
        reads=in_force.attention, shows=Effects.attends_with,
        trials={kernel: {"cuda", "rocm"} for kernel in ("flash_attention", "cudnn_attention", "efficient_attention")},
        devices_of={value: {"cuda"} for value in _LATER},
        without_word="set for the process when training starts",
        lacks={"patch": "it is set for the process when training starts"},
    ),
)  # fmt: skip
