"""The models that a training calls and steps: whether their layout and precision may change while they train."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import hooks
from ..effects import compiled_graphs
from ..loop import autocast_dtype, is_compiled
from ..naming import wrapped_in

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Models:
    """Notes the models that the script calls in training, from its first steps until the search begins."""

    def __init__(self) -> None:
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._device_type, self._casts = "cpu", False
        self.end = hooks.on_outermost_forward(self._on_forward, self._on_inner_forward)

    def _on_forward(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        if model.training and torch.is_grad_enabled() and (weight := next(model.parameters(), None)) is not None:
            self._called.add(model)
            self._device_type = weight.device.type
            self._on_inner_forward(arguments)

    def _on_inner_forward(self, _: tuple[Any, ...]) -> None:
        """Frameworks enter autocast within the model."""
        self._casts |= torch.is_grad_enabled() and autocast_dtype(self._device_type) is not None

    def stepped_by(self, optimizer: Optimizer) -> list[nn.Module]:
        """The models whose weights an optimizer steps, without their wrappers."""
        stepped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        models = [wrapped_in(model)[-1] for model in self._called]
        return [model for model in models if any(id(weight) in stepped for weight in model.parameters())]

    def why_not(self, models: list[nn.Module]) -> dict[str, str]:
        """By knob, why models keep the script's own value."""
        weights = [weight for model in models for weight in model.parameters()]
        reason = None
        if not models:
            reason = "no model was seen to be called"
        elif compiled_graphs() or any(isinstance(m, torch.jit.ScriptModule) or is_compiled(m) for m in models):
            reason = "the script compiles its model itself"
        elif any(weight.untyped_storage().is_shared() for weight in weights if weight.device.type == "cpu"):
            reason = "other processes share the weights"
        elif torch.distributed.is_available() and torch.distributed.is_initialized():
            reason = "the script trains in a process group"
        if reason is not None:
            return {"memory_format": reason, "precision": reason}
        if self._casts or any(weight.is_floating_point() and weight.dtype != torch.float32 for weight in weights):
            return {"precision": "the script chooses its precision itself"}
        return {}


def have_images(models: list[nn.Module]) -> bool:
    """Whether any weight has four dimensions, as those of convolutions on images."""
    return any(weight.dim() == 4 for model in models for weight in model.parameters())
