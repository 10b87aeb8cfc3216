"""The knob for the implementation of the optimizer: optimizer_impl."""

from __future__ import annotations

from typing import get_args

from autotune.knobs.config import OptimizerImpl, Scalar
from autotune.knobs.context import Choices, SearchContext, offer
from autotune.knobs.knob import EVERYWHERE, Knob
from autotune.recorder.effects import Effects
from autotune.torch_settings.process_settings import form_of, switch_optimizer


def _candidates(context: SearchContext) -> Choices | str:
    """Implementations that this optimizer accepts."""
    # On CUDA, torch uses foreach by default.
    own_choice = {"foreach"} if context.device == "cuda" else set()
    offered = {"default", *context.facts.optimizer_impls} - own_choice
    implementations = [value for value in get_args(OptimizerImpl) if value in offered]
    reason = "one kernel for all parameters saves launches and passes over memory"
    return offer(
        implementations, reason, "this optimizer has only one implementation", own=context.start.optimizer_impl
    )


def _as_optim(form: str, optimizer: str | None) -> dict[str, Scalar] | None:
    """The argument of ``TrainingArguments``, which has no word for foreach: that is torch's default on GPUs only."""
    if optimizer != "AdamW" or form == "foreach":
        return None
    return {"optim": "adamw_torch_fused" if form == "fused" else "adamw_torch"}


KNOBS = (
    Knob(
        name="optimizer_impl", scope="live", while_training="neutral", when="the optimizer has such a form",
        why="one kernel for all parameters saves launches and passes over memory",
        candidates=_candidates, prefers=("fused", "foreach"), priority={"gpu": 100, "cpu": 80}, guide=110,
        affects={"memory", "arithmetic"}, on_optimizer=switch_optimizer,
        reads=form_of, shows=Effects.steps_by,
        words={"transformers": ("optim",)}, written={"transformers": _as_optim},
        optimizer_arguments=("fused", "foreach"),
        trials={"foreach": EVERYWHERE, "fused": EVERYWHERE},
        without_word="the optimizer is switched when training starts",
    ),
)  # fmt: skip
