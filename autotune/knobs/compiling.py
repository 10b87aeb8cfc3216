"""The knob of torch.compile: compile_mode."""

from __future__ import annotations

from autotune.hardware import Gpu
from autotune.knobs.circumstances import Choices, Circumstances, offer
from autotune.knobs.config import Scalar
from autotune.knobs.knob import Knob
from autotune.recorder.telling import compile_model
from autotune.units import format_seconds

_BUDGET_SECONDS, _PROMISING_BUDGET_SECONDS = 180.0, 90.0
"""With a shorter budget nothing is compiled; the second where compiling promises most of all."""
_MAX_AUTOTUNE_BUDGET_SECONDS, _MAX_AUTOTUNE_PROCESSORS = 1200.0, 68
"""Its search takes minutes for each shape; on GPUs with fewer multiprocessors torch searches no matrix products
(`torch._inductor.utils.is_big_gpu`)."""


def _candidates(of: Circumstances) -> Choices | str:
    """Modes of torch.compile that can break even within the budget."""
    if of.device == "mps":
        return "torch.compile is still experimental on MPS"
    least = _PROMISING_BUDGET_SECONDS if of.overhead_bound else _BUDGET_SECONDS
    if of.budget_seconds < least:
        return (
            f"compiling takes 8 to 60 s each time and cannot break even within {format_seconds(of.budget_seconds)}; "
            f"give a budget of {format_seconds(least)} or more"
        )
    own = of.start.compile_mode
    if of.device == "cpu":
        return offer((None, "default"), "on the CPU the default mode fuses what eager mode does apart", own=own)
    modes: list[Scalar] = [None, "default"]
    searches = of.budget_seconds >= _MAX_AUTOTUNE_BUDGET_SECONDS and _processors(of) >= _MAX_AUTOTUNE_PROCESSORS
    if searches:
        modes.append("max-autotune-no-cudagraphs")
    if not of.facts.fixed_shapes:
        reason = "compiling fuses kernels; modes with CUDA graphs are left out, since shapes vary from batch to batch"
        return offer(modes, reason, own=own)
    modes.insert(2, "reduce-overhead")
    if searches:
        modes.append("max-autotune")
    return offer(modes, "compiling fuses kernels, and CUDA graphs take away launch costs", own=own)


def _processors(of: Circumstances) -> int:
    """Multiprocessors of the GPU; 0 where that is not known."""
    return (of.record.sm_count or 0) if isinstance(of.record, Gpu) else 0


KNOBS = (
    Knob(
        name="compile_mode", when="budgets of 3 minutes or more, not on MPS",
        why="compiling fuses kernels, and CUDA graphs take away launch costs",
        candidates=_candidates, priority={"gpu": 30, "cpu": 70}, guide=90,
        affects={"memory", "arithmetic", "compiled code"}, on_model=compile_model,
        words={"transformers": ("torch_compile", "torch_compile_mode"), "accelerate": ("dynamo_plugin",)},
        without_word="the model is compiled when training starts, under Lightning its `training_step`",
    ),
)  # fmt: skip
