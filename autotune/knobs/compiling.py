"""The knob of torch.compile: compile_mode."""

from __future__ import annotations

from autotune.hardware import Gpu
from autotune.knobs.config import Scalar
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import EVERYWHERE, ByLeave, Knob
from autotune.recorder.compiled import CODE_DEPENDS_ON, GRAPHED, compile_model, compiled_mode
from autotune.units import format_seconds

_INDUCTOR_BUDGET_SECONDS = 180.0
_BUDGET_SECONDS = {
    "cudagraphs": 60.0, "blocks": 90.0, "max-autotune-no-cudagraphs": 1200.0, "max-autotune": 1200.0,
}  # fmt: skip
"""With a shorter budget nothing is compiled in this mode: by what compiling takes, of which the first needs seconds;
the last two search for minutes."""
_OUTSIDE = 0.05
"""Of the loss that must go past the model for compiling it with the loss to be worth another compile: all of it hidden,
a step is a twentieth faster, of which a duet sees two fifths (two per cent). Chosen."""
_PROMISING = 0.5
"""Where compiling promises most of all, a budget of this share will do."""
_MAX_AUTOTUNE = ("max-autotune-no-cudagraphs", "max-autotune")
_MAX_AUTOTUNE_PROCESSORS = 68
"""On GPUs with fewer multiprocessors torch searches no matrix products (`torch._inductor.utils.is_big_gpu`)."""


def _candidates(context: SearchContext) -> Choices | str:
    """Modes of torch.compile that can break even within the budget."""
    if context.device == "mps":
        return "torch.compile is still experimental on MPS"
    possible = _possible(context)
    modes: list[Scalar] = [mode for mode in possible if context.budget_seconds >= _least_budget(mode, context)]
    if not modes:
        least = min(_least_budget(mode, context) for mode in possible)
        return (
            f"compiling takes 8 to 60 s each time and cannot break even within {format_seconds(context.budget_seconds)}; "
            f"give a budget of {format_seconds(least)} or more"
        )
    return offer([None, *modes], _reason(context), own=context.start.compile_mode)


def _possible(context: SearchContext) -> list[str]:
    """Modes that have an effect of their own here."""
    modes = ["default"]
    if context.device != "cpu":
        searches = _processors(context) >= _MAX_AUTOTUNE_PROCESSORS
        modes += ["reduce-overhead", *(_MAX_AUTOTUNE if searches else ())]
        modes += ["cudagraphs"] if context.device == "cuda" else []
    if context.facts.repeated_blocks:
        modes.append("blocks")
    if (
        context.facts.outside_fraction >= _OUTSIDE and context.start.ranks == 1
    ):  # DDP's buckets end graphs of the model itself
        modes.append("loss")
    return modes if context.facts.fixed_shapes else [mode for mode in modes if mode not in GRAPHED]


def _least_budget(mode: str, context: SearchContext) -> float:
    least = _BUDGET_SECONDS.get(mode, _INDUCTOR_BUDGET_SECONDS)
    return _PROMISING * least if context.overhead_bound and mode not in _MAX_AUTOTUNE else least


def _reason(context: SearchContext) -> str:
    if context.device == "cpu":
        return "on the CPU the default mode fuses what eager mode does apart"
    if not context.facts.fixed_shapes:
        return "compiling fuses kernels; modes with CUDA graphs are left out, since shapes vary from batch to batch"
    return "compiling fuses kernels, and CUDA graphs take away launch costs"


def _processors(context: SearchContext) -> int:
    """Multiprocessors of the GPU; 0 where that is not known."""
    return (context.record.sm_count or 0) if isinstance(context.record, Gpu) else 0


KNOBS = (
    Knob(
        name="compile_mode", scope="compiled",
        while_training=ByLeave("dropout draws other random numbers, and fused operators round differently"),
        when="budgets of 3 minutes or more (`blocks` 1½, `cudagraphs` 1; `loss` where much goes past the model), half "
        "of it where calling operators is most of the work; `max-autotune…` always 20; not on MPS",
        why="compiling fuses kernels, and CUDA graphs take away launch costs",
        candidates=_candidates, priority={"gpu": 30, "cpu": 70}, guide=90, devices_of={"cudagraphs": {"cuda"}},
        affects={"memory", "arithmetic", "compiled code"}, on_model=compile_model,
        looks_at=(*CODE_DEPENDS_ON, "accumulation_steps"),
        reads=lambda model, *_: None if model is None else compiled_mode(model),
        trials={"default": EVERYWHERE - {"mps"}, "reduce-overhead": {"cuda", "rocm"}, "cudagraphs": {"cuda"}},
        words={"transformers": ("torch_compile", "torch_compile_mode"), "accelerate": ("dynamo_plugin",)},
        without_word="the model is compiled when training starts, under Lightning its `training_step`",
    ),
)  # fmt: skip
