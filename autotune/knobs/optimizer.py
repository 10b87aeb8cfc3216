"""The knob of how an optimizer steps: optimizer_impl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from autotune.errors import ConfigError
from autotune.knobs.circumstances import Choices, Circumstances, offer
from autotune.knobs.config import OptimizerImpl
from autotune.knobs.knob import Knob

if TYPE_CHECKING:
    from torch.optim import Optimizer


def _candidates(of: Circumstances) -> Choices | str:
    """Implementations that this optimizer accepts."""
    # On CUDA, torch takes the foreach form by itself.
    own_choice = {"foreach"} if of.device == "cuda" else set()
    offered = {"default", *of.facts.optimizer_impls} - own_choice
    known = [value for value in get_args(OptimizerImpl) if value in offered]
    reason = "one kernel for all parameters saves launches and passes over memory"
    return offer(known, reason, "this optimizer has only one implementation", own=of.start.optimizer_impl)


def _switch(optimizer: Optimizer, implementation: str) -> None:
    """Switches an optimizer to its foreach or fused form, as if it had been made so, checkpoints included."""
    chosen = {}
    if implementation != "default":
        if implementation not in optimizer.defaults:
            raise ConfigError(
                f"optimizer_impl={implementation} cannot be used: {type(optimizer).__name__} has no such form; "
                "use optimizer_impl=default"
            )
        forms = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
        chosen = {name: on for name, on in forms.items() if name in optimizer.defaults}
        optimizer._step_supports_amp_scaling = implementation == "fused"  # type: ignore[attr-defined]
    for settings in (optimizer.defaults, *optimizer.param_groups):
        settings.update(chosen)

    def choose(_: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        return {**saved, "param_groups": [{**group, **chosen} for group in saved["param_groups"]]}

    optimizer.register_load_state_dict_pre_hook(choose)
    optimizer.register_load_state_dict_post_hook(_lay_out_state)
    if optimizer.state:  # moves state that was made or loaded before the parameters moved
        optimizer.load_state_dict(optimizer.state_dict())


def _lay_out_state(optimizer: Optimizer) -> None:
    """Gives state the strides of its parameter: the fused form pairs their elements by address, on trust."""
    import torch

    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            like_it = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            if like_it and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


KNOBS = (
    Knob(
        name="optimizer_impl", when="the optimizer has such a form",
        why="one kernel for all parameters saves launches and passes over memory",
        candidates=_candidates, prefers=("fused", "foreach"), priority={"gpu": 100, "cpu": 80}, guide=110,
        affects={"memory", "arithmetic"}, on_optimizer=_switch, words={"transformers": ("optim",)},
        without_word="the optimizer is switched when training starts",
    ),
)  # fmt: skip
