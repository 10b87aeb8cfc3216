"""The knob of torch.compile: compile_mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.knobs.circumstances import Choices, Circumstances, offer
from autotune.knobs.config import Scalar
from autotune.knobs.knob import Knob
from autotune.units import format_seconds

if TYPE_CHECKING:
    from torch import nn

_BUDGET_SECONDS, _PROMISING_BUDGET_SECONDS = 180.0, 90.0
"""With a shorter budget nothing is compiled; the second where compiling promises most of all."""
_MAX_AUTOTUNE_BUDGET_SECONDS = 600.0


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
    if of.budget_seconds >= _MAX_AUTOTUNE_BUDGET_SECONDS:
        modes.append("max-autotune-no-cudagraphs")
    if not of.facts.fixed_shapes:
        reason = "compiling fuses kernels; modes with CUDA graphs are left out, since shapes vary from batch to batch"
        return offer(modes, reason, own=own)
    modes.insert(2, "reduce-overhead")
    if of.budget_seconds >= _MAX_AUTOTUNE_BUDGET_SECONDS:
        modes.append("max-autotune")
    return offer(modes, "compiling fuses kernels, and CUDA graphs take away launch costs", own=own)


def _compile(model: nn.Module, mode: str | None) -> None:
    """Compiles the model's call in place, so that ``state_dict()`` keeps its keys.

    This is ``nn.Module.compile`` but for the function in between: torch does not trace functions of its own files, so a
    model whose class is torch's (``nn.Sequential``) would silently run eagerly.
    """
    if mode is None:
        return
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    model._compiled_call_impl = torch.compile(call, mode=mode)


KNOBS = (
    Knob(
        name="compile_mode", when="budgets of 3 minutes or more, not on MPS",
        why="compiling fuses kernels, and CUDA graphs take away launch costs",
        candidates=_candidates, priority={"gpu": 30, "cpu": 70}, guide=90,
        affects={"memory", "arithmetic", "compiled code"}, on_model=_compile,
        words={"transformers": ("torch_compile", "torch_compile_mode"), "accelerate": ("dynamo_plugin",)},
        without_word="the model is compiled when training starts, under Lightning its `training_step`",
    ),
)  # fmt: skip
