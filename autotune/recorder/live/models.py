"""The models that a training calls and steps: what may change about them while they train."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...timing.loop import autocast_dtype, is_compiled, outermost
from ...torch_settings.compiled import compiled_graphs, compiles_backward_early
from ...torch_settings.layout import convolved, entries, layout_of
from ...torch_settings.naming import weights_of
from ...torch_settings.undo import Undo, in_reverse
from ...torch_settings.wrapping import is_in_backward, is_transforming, wrap_forward
from .. import hooks
from ..hooks import harmless
from .forwards import Forwards

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Models:
    """Notes the models that the script calls in training, from its first steps until the search begins.

    Meanwhile, each call of a module takes some microseconds longer.
    """

    def __init__(self) -> None:
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._device_type, self._casts = "cpu", False
        self._forwards = Forwards()
        self._trains = False  # whether the outermost call is one in training
        self._fault: str | None = None
        self._recomputes = False
        self.end = in_reverse(
            [
                hooks.on_outermost_forward(self._on_forward, self._on_inner_forward, self._on_return),
                hooks.on_tensor_hook(self._forwards.hook),
            ]
        )

    @harmless
    def _on_forward(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        self._trains = model.training and torch.is_grad_enabled()
        if not self._trains:
            return
        if is_in_backward():  # checkpointing calls parts again
            self._recomputes = True
            return
        if (weight := next(iter(model.parameters()), None)) is not None:
            self._called.add(model)
            self._device_type = weight.device.type
            if not is_transforming():
                self._forwards.begin(model)
            self._on_inner_forward(arguments)

    @harmless
    def _on_inner_forward(self, arguments: tuple[Any, ...]) -> None:
        """Frameworks enter autocast within the model; some models enter torch.func."""
        if self._trains and self._called and is_transforming():
            self.give_up("torch.func transforms the model")
            return
        self._casts |= torch.is_grad_enabled() and autocast_dtype(self._device_type) is not None
        self._forwards.enter(arguments)

    @harmless
    def _on_return(self, returned: Any) -> None:
        self._forwards.leave(returned)

    def give_up(self, why: str) -> None:
        """Stops looking after a fault: then no model changes."""
        self._fault = why
        self.end()

    def stepped_by(self, optimizer: Optimizer) -> list[nn.Module]:
        """The models whose weights an optimizer steps; no model is part of another one."""
        stepped = {id(weight) for weight in weights_of(optimizer)}
        models = [model for model in self._called if any(id(weight) in stepped for weight in model.parameters())]
        return outermost(models)

    def why_not(self, models: list[nn.Module]) -> dict[str, str]:
        """The knobs of models that keep the script's own value, each with why."""
        convolving = [model for model in models if 2 in convolved([model])]
        if (why := self._why_none(models)) is not None:
            return {"precision": why, "compile_mode": why} | ({"memory_format": why} if convolving else {})
        reasons: dict[str, str] = {}
        weights = [weight for model in models for weight in model.parameters()]
        if self._casts or any(weight.is_floating_point() and weight.dtype != torch.float32 for weight in weights):
            reasons["precision"] = "the script chooses its precision itself"
        if any(layout_of(model) == "channels_last" for model in convolving):
            reasons["memory_format"] = "the script lays its model out itself"
        elif convolving and (reason := self._forwards.why_not(convolving)) is not None:
            reasons["memory_format"] = reason
        if (reason := self._why_not_compiled(models)) is not None:
            reasons["compile_mode"] = reason
        return reasons

    def _why_not_compiled(self, models: list[nn.Module]) -> str | None:
        """Why compiling these models might make a step fail that is not caught, or show the script something else."""
        if not compiles_backward_early():
            return "this release of torch compiles the backward pass later, where an error would end the training"
        if self._recomputes:
            return "the backward pass calls parts of the model again"
        return self._forwards.why_hooked(models)

    def _why_none(self, models: list[nn.Module]) -> str | None:
        """Why models are left as they are."""
        if self._fault is not None:
            return self._fault
        if not models:
            return "no model was seen to be called"
        parts = [part for model in models for part in model.modules()]
        if compiled_graphs() or any(isinstance(part, torch.jit.ScriptModule) or is_compiled(part) for part in parts):
            return "the script compiles its model itself"
        is_in_group = torch.distributed.is_available() and torch.distributed.is_initialized()
        if is_in_group or any(isinstance(part, nn.DataParallel) for part in parts):
            return "the model is copied to several devices"
        return None


def with_fallback(model: nn.Module, fall_back: Callable[[Exception], None]) -> Undo:
    """Calls a model, or a part of it, again where it raises, once `fall_back` has restored the script's own forward.

    Random numbers are drawn as by the first call. Running averages are restored where that call is the first one.
    Code that is being compiled is called as it is.
    """
    inside = False
    buffers: list[tuple[torch.Tensor, torch.Tensor]] | None = [
        (buffer, buffer.detach().clone()) for buffer in model.buffers()
    ]

    def guarded(part: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal buffers, inside
        if torch.compiler.is_compiling() or is_in_backward():  # checkpointing ends a repeated call by an exception
            return forward(*args, **kwargs)
        restore = restoring(model, buffers or ())
        buffers = None
        inside = True
        try:
            return forward(*args, **kwargs)
        except Exception as error:
            called = args[0] if args and isinstance(args[0], type(part)) else part
            if called is not part:  # a copy
                raise
            fall_back(error)
        finally:
            inside = False
        # Here the error is gone, and with it what the first call had computed: memory need not hold both.
        restore()
        return part.forward(*(args[1:] if args and args[0] is part else args), **kwargs)

    def guarding(part: nn.Module) -> Any:
        return lambda forward, *args, **kwargs: guarded(part, forward, *args, **kwargs)

    return in_reverse([wrap_forward(part, guarding(part), lambda _: not inside) for part in entries(model)])


def restoring(model: nn.Module, buffers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Undo:
    """Restores the generators of random numbers as they are now, and some buffers as they were."""
    state = torch.get_rng_state()
    is_on_device = next(model.parameters()).is_cuda and not torch.cuda.is_current_stream_capturing()
    on_device = torch.cuda.get_rng_state() if is_on_device else None

    def restore() -> None:
        torch.set_rng_state(state)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)

    return restore
