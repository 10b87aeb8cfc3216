"""The knob of torch.compile: compile_mode."""

from __future__ import annotations

import math
from collections.abc import Mapping

from autotune.hardware import Gpu
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import EVERYWHERE, ByLeave, Knob
from autotune.recorder.effects import Effects
from autotune.torch_settings import in_force
from autotune.torch_settings.compiled import CODE_DEPENDS_ON, GRAPHED, OWN_MODES, compile_calls, compiled_mode
from autotune.torch_settings.packages import CPP
from autotune.torch_settings.process_settings import try_nvgemm
from autotune.units import format_seconds

_INDUCTOR_BUDGET_SECONDS = 180.0
_BUDGET_SECONDS = {
    "cudagraphs": 60.0, "blocks": 90.0, "max-autotune-no-cudagraphs": 1200.0, "max-autotune": 1200.0,
}  # fmt: skip
"""The shortest search budget with which a mode is tried. It depends on how long the mode compiles: the first takes
seconds, the last two search for minutes."""
COMPILE_SECONDS: Mapping[str, float] = {
    "cudagraphs": 4.0, "blocks": 14.0, "default": 20.0, "loss": 20.0, "reduce-overhead": 20.0,
    "max-autotune-no-cudagraphs": 120.0, "max-autotune": 120.0,
}  # fmt: skip
"""Seconds that a first compile is expected to take, by mode. Once one has been seen, only their ratios count. CUDA
graphs are recorded in a step or two, and blocks took two thirds of the whole model on a CPU
(benchmarks/regional_compile.py). The rest is not tuned."""
_OUTSIDE = 0.05
"""Least share of the loss outside the model's call for which the two are compiled together. Hiding this much makes a
step 5 % faster; a duet detects 2 %. Not tuned."""
_PROMISING = 0.5
"""Where operator overhead dominates, compiling promises most, and this share of the shortest budget is enough."""
_MAX_AUTOTUNE = ("max-autotune-no-cudagraphs", "max-autotune")
_MAX_AUTOTUNE_PROCESSORS = 68
"""On GPUs with fewer multiprocessors torch searches no matrix products (`torch._inductor.utils.is_big_gpu`)."""


def compile_seconds(config: TrainConfig) -> float:
    """Seconds that a first compile is expected to take."""
    return COMPILE_SECONDS[config.compile_mode] if config.compile_mode is not None else 0.0


def compiles_alike(config: TrainConfig, other: TrainConfig) -> bool:
    """Whether two configs compile the model in the same mode; ``loss`` is the default mode for more than the model."""
    mode, other_mode = ("default" if side.compiles_loss else side.compile_mode for side in (config, other))
    return mode is not None and mode == other_mode


def _candidates(context: SearchContext) -> Choices | str:
    """Modes of torch.compile that can pay off within the budget."""
    if context.device == "mps":
        return "torch.compile is still experimental on MPS"
    possible = _possible(context)
    if not possible and context.device == "cpu":
        return "torch compiles for the CPU with a C++ compiler, which is not found: install g++, or set CXX"
    if not possible:
        return "torch compiles for GPUs with Triton, which is not installed: pip install triton"
    modes: list[Scalar] = [mode for mode in possible if context.budget_seconds >= _least_budget(mode, context)]
    if not modes:
        least = min(_least_budget(mode, context) for mode in possible)
        return (
            "compiling takes 8 to 60 s each time and cannot break even within "
            f"{format_seconds(context.budget_seconds)}; --budget {math.ceil(least / 60)}m would try it"
        )
    return offer([None, *modes], _reason(context), own=context.start.compile_mode)


def _possible(context: SearchContext) -> list[str]:
    """Modes that differ from the others on this device and workload."""
    modes = ["default"]
    if ("triton" if context.device != "cpu" else CPP) not in context.facts.packages:
        return ["cudagraphs"] if context.device == "cuda" and context.facts.fixed_shapes else []
    if context.device != "cpu":
        searches = _processors(context) >= _MAX_AUTOTUNE_PROCESSORS
        modes += ["reduce-overhead", *(_MAX_AUTOTUNE if searches else ())]
        modes += ["cudagraphs"] if context.device == "cuda" else []
    if context.facts.repeated_blocks:
        modes.append("blocks")
    if context.facts.outside_fraction >= _OUTSIDE and context.start.ranks == 1:  # DDP breaks the graph at its buckets
        modes.append("loss")
    return modes if context.facts.fixed_shapes else [mode for mode in modes if mode not in GRAPHED]


def _least_budget(mode: str, context: SearchContext) -> float:
    least = _BUDGET_SECONDS.get(mode, _INDUCTOR_BUDGET_SECONDS)
    return _PROMISING * least if context.overhead_bound and mode not in _MAX_AUTOTUNE else least


def _reason(context: SearchContext) -> str:
    if context.device == "cpu":
        return "on the CPU the default mode fuses operators that eager mode runs one by one"
    if not context.facts.fixed_shapes:
        return "compiling fuses kernels; modes with CUDA graphs are left out, since shapes vary from batch to batch"
    return "compiling fuses kernels, and CUDA graphs take away launch costs"


def _nvgemm(context: SearchContext) -> Choices | str:
    """Whether `max-autotune` tries NVIDIA's kernels too."""
    modes = _candidates(context)
    if context.device != "cuda" or isinstance(modes, str) or not {*_MAX_AUTOTUNE} & {*modes.values}:
        return "it adds kernels to those that `max-autotune` tries, and that is not searched here"
    if not {"cutlass_api", "cutlass.operators"} & {*context.facts.packages}:
        return "NVIDIA's kernels for matrix products need its package cutlass_api, which is not installed"
    return Choices((False, True), "NVIDIA's own kernels may beat those of cuBLAS and Triton for a shape")


def _nvgemm_conflict(config: TrainConfig) -> str | None:
    if not config.nvgemm or config.compile_mode in _MAX_AUTOTUNE:
        return None
    return "NVIDIA's kernels go with a compile_mode of max-autotune"


def _processors(context: SearchContext) -> int:
    """Multiprocessors of the GPU; 0 if unknown."""
    return (context.record.sm_count or 0) if isinstance(context.record, Gpu) else 0


def _as_torch_compile(mode: str | None, _: str | None) -> dict[str, Scalar] | None:
    """The arguments of ``TrainingArguments``, which has Inductor's modes alone."""
    return None if mode in OWN_MODES else {"torch_compile": True, "torch_compile_mode": mode}


KNOBS = (
    Knob(
        name="nvgemm", scope="compiled",
        when="with `max-autotune…`, on NVIDIA, with the package cutlass_api, from torch 2.13 on",
        why="NVIDIA's own kernels may beat cuBLAS and Triton for a shape (untested: it needs such a package)",
        candidates=_nvgemm, meets=("compile_mode",), priority={"gpu": 31}, guide=91, devices={"cuda"}, since=(2, 13),
        affects={"arithmetic", "compiled code"}, conflict=_nvgemm_conflict, on_process=try_nvgemm,
        reads=in_force.nvgemm, without_word="set for the process when training starts",
    ),
    Knob(
        name="compile_mode", scope="compiled",
        while_training=ByLeave("fused operators round differently, and on a GPU dropout draws other random numbers"),
        when="budgets of 3 minutes or more (`blocks` 1½, `cudagraphs` 1; `loss` where much goes past the model), half "
        "of it where calling operators is most of the work; `max-autotune…` always 20; not on MPS",
        why="compiling fuses kernels, and CUDA graphs take away launch costs",
        candidates=_candidates, hides_overhead=("reduce-overhead", "cudagraphs", "blocks", "loss", "default"),
        meets=("precision",), priority={"gpu": 30, "cpu": 70}, guide=90, devices_of={"cudagraphs": {"cuda"}},
        affects={"memory", "arithmetic", "compiled code"}, on_model=compile_calls,
        looks_at=(*CODE_DEPENDS_ON, "accumulation_steps"),
        reads=compiled_mode, shows=Effects.compiles,
        trials={"default": EVERYWHERE - {"mps"}, "reduce-overhead": {"cuda", "rocm"}, "cudagraphs": {"cuda"}},
        words={"transformers": ("torch_compile", "torch_compile_mode"), "accelerate": ("dynamo_plugin",)},
        written={"transformers": _as_torch_compile},
        without_word="the model is compiled when training starts, under Lightning its `training_step`",
    ),
)  # fmt: skip
