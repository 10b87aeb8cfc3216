"""The knobs of how a model computes: layout of images, kernel of attention, and what backward computes again."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import EVERYWHERE, Knob
from autotune.recorder.effects import Effects
from autotune.torch_settings import in_force
from autotune.torch_settings.layout import convolve_channels_last, layout_of
from autotune.torch_settings.precision import HALF
from autotune.torch_settings.process_settings import restrict_attention
from autotune.torch_settings.wrapping import checkpoint_blocks, checkpointed

_LATER = {"flash_attention_3": ("flash_attn_interface", (9,)), "flash_attention_4": ("flash_attn.cute", (9, 10))}
"""The package of each later FlashAttention, and the major compute capabilities that torch uses it for."""
_CUDNN = "cudnn_attention"
_ANY_LENGTH = ("efficient_attention", "flash_attention")
_HALF_ONLY = ("flash_attention", _CUDNN, *_LATER)


def _layouts(context: SearchContext) -> Choices | str:
    """Memory layouts of images."""
    if 2 not in context.facts.convolves:
        return "no convolutions of images are seen, which channels_last would be for"
    return Choices(("contiguous", "channels_last"), "convolutions on images are often faster in channels_last")


def _preferred_layout(context: SearchContext, picked: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    """Without tensor cores, convolutions on a GPU are often slower in channels_last."""
    tensor_cores = picked.get("precision", context.start.precision) != "fp32"
    return ("channels_last",) if context.device == "cpu" or tensor_cores else ()


def _kernels(context: SearchContext) -> Choices | str:
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
            if context.facts.fixed_shapes:
                values.append(_CUDNN)
            major = (context.capability or (0, 0))[0]
            values += [
                value for value, (package, on) in _LATER.items() if major in on and package in context.facts.packages
            ]
    return offer(values, "which kernel of attention is fastest depends on its shapes", own=context.start.sdpa_backend)


def _any_length(context: SearchContext, config: TrainConfig) -> tuple[Scalar, ...]:
    """The kernels that take any shape at once, where torch would leave attention to cuDNN and shapes vary.

    cuDNN prepares a kernel for each new shape. On an H100, each took 2.6 s, with torch 2.11 and cuDNN 9.19: a search
    would see little else.
    """
    varies = context.facts.has_attention and not context.facts.fixed_shapes
    chosen = context.attention if config.sdpa_backend == "default" else config.sdpa_backend
    return _ANY_LENGTH if varies and chosen == _CUDNN and config.precision in HALF else ()


def _preferred_kernel(context: SearchContext, _: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    """Another kernel, where the user's own training prepares one for each length."""
    return _any_length(context, context.start)


def _instead_of_preparing(context: SearchContext, config: TrainConfig) -> tuple[Scalar, ...]:
    """What the user trains with, or pins, stays as it is."""
    return () if context.start.precision in HALF else _any_length(context, config)


def _kernel_conflict(config: TrainConfig) -> str | None:
    if config.sdpa_backend not in _HALF_ONLY or config.precision in HALF:
        return None
    return f"{config.sdpa_backend} computes in {' or '.join(HALF)} only, not in {config.precision}"


def _recomputing(context: SearchContext) -> Choices | str:
    """Searched where a larger batch can use the memory that it saves; otherwise tried only if memory runs out."""
    possible = _when_short(context)
    if isinstance(possible, str) or context.seeks_memory_by("checkpointing"):
        return possible
    return "it saves memory but costs time, and the batch is fixed: it is tried only if the baseline runs out of memory"


def _when_short(context: SearchContext) -> Choices | str:
    """Blocks that can be recomputed."""
    if not context.facts.recomputable_blocks:
        return (
            "the model has no repeated blocks that can be recomputed "
            "(blocks whose buffers change in a forward pass, as BatchNorm's do, cannot)"
        )
    return Choices(("none", "blocks"), "recomputing blocks in backward leaves room for larger batches")


KNOBS = (
    Knob(
        name="memory_format", scope="live", while_training="neutral",
        when="the model convolves images", why="convolutions on images are often faster in channels_last",
        candidates=_layouts, meets=("precision",), prefers=_preferred_layout,
        priority={"gpu": 50, "cpu": 40}, guide=100,
        affects={"memory", "arithmetic", "compiled code"}, on_model=convolve_channels_last, reads=layout_of,
        trials={"channels_last": EVERYWHERE},
        without_word="the model's convolutions are wrapped when training starts",
    ),
    Knob(
        name="sdpa_backend", scope="live", while_training="neutral",
        when="CUDA and ROCm, where scaled dot-product attention runs",
        why="which kernel of attention is fastest depends on its shapes; cuDNN's prepares one for each new shape",
        candidates=_kernels, prefers=_preferred_kernel, priority={"gpu": 70}, guide=120, conflict=_kernel_conflict,
        instead=_instead_of_preparing,
        affects={"memory", "arithmetic", "compiled code"}, on_process=restrict_attention,
        reads=in_force.attention, shows=Effects.attends_with,
        trials={kernel: {"cuda", "rocm"} for kernel in ("flash_attention", "cudnn_attention", "efficient_attention")},
        devices_of={value: {"cuda"} for value in _LATER},
        needs={value: package for value, (package, _) in _LATER.items()},
        without_word="set for the process when training starts",
    ),
    Knob(
        name="checkpointing", scope="compiled",
        when="blocks repeat, with `--effective-batch free` or where the baseline does not fit",
        why="recomputing blocks in backward takes less memory, so that larger batches fit",
        candidates=_recomputing, when_short=_when_short, priority={"gpu": 125, "cpu": 105}, guide=85,
        affects={"memory", "compiled code"}, on_model=checkpoint_blocks,
        reads=checkpointed,
        without_word="the model's blocks are wrapped when training starts",
    ),
)  # fmt: skip
