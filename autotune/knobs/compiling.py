"""The knob of torch.compile: compile_mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.hardware import Gpu
from autotune.knobs.circumstances import Choices, Circumstances, offer
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.knob import Knob
from autotune.units import format_seconds

if TYPE_CHECKING:
    import torch
    from torch import nn

_BUDGET_SECONDS, _PROMISING_BUDGET_SECONDS = 180.0, 90.0
"""With a shorter budget nothing is compiled; the second where compiling promises most of all."""
_MAX_AUTOTUNE_BUDGET_SECONDS, _MAX_AUTOTUNE_PROCESSORS = 1200.0, 68
"""Its search takes minutes for each shape; on GPUs with fewer multiprocessors torch searches no matrix products
(`torch._inductor.utils.is_big_gpu`)."""
_GRAPHED = ("reduce-overhead", "max-autotune")
"""Modes that replay CUDA graphs."""


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


def _compile(model: nn.Module, config: TrainConfig) -> None:
    """Compiles the model's call in place, so that ``state_dict()`` keeps its keys.

    This is ``nn.Module.compile`` but for the function in between: torch does not trace functions of its own files, so a
    model whose class is torch's (``nn.Sequential``) would silently run eagerly.
    """
    mode = config.compile_mode
    if mode is None:
        return
    import torch

    keep_gradients(model, config)

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    model._compiled_call_impl = torch.compile(call, mode=mode)


def keep_gradients(model: nn.Module, config: TrainConfig) -> None:
    """Lets a model's gradients live through the micro-batches of a step, where a CUDA graph is replayed for each."""
    if config.compile_mode in _GRAPHED and config.accumulation_steps > 1:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_own_gradient)  # type: ignore[no-untyped-call]


def _own_gradient(parameter: torch.Tensor) -> None:
    """Copies a gradient out of the memory of a CUDA graph, which the next micro-batch overwrites.

    The first micro-batch of a step leaves the graph's own tensor as the gradient, and torch refuses to add to it once
    the graph has run again. The copy is kept until the gradients are set to None; the next micro-batches add to it.
    """
    gradient = parameter.grad
    if gradient is not None and not getattr(gradient, "_is_own_copy", False):
        parameter.grad = gradient.clone()
        parameter.grad._is_own_copy = True  # type: ignore[attr-defined]  # lives as long as the tensor does


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
