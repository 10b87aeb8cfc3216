"""Compiling a model while it trains: once, for the shapes that batches have; all other calls are as the script's."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter  # by name: the script may replace what `time` holds
from typing import Any

import torch
from torch import nn

from ...torch_settings.compiled import compiled_apart
from ...torch_settings.naming import tensors_in
from ...torch_settings.undo import Undo, nothing, put
from ...torch_settings.wrapping import is_in_backward, while_training
from .. import hooks
from .models import restoring


class Compiler:
    """Decides which calls of a compiled model run compiled code, and which one compiles it.

    Args:
        fall_back: Restores the script's own call after an error; then the model is called again.
        refuse: Called before a backward pass that makes a graph of the gradients: compiled code has no gradients of
            gradients. None: such passes are not watched for.

    Attributes:
        end: Stops watching for such passes.
        has_compiled: Whether any model was compiled, or failed to be.
    """

    def __init__(self, fall_back: Callable[[Exception], None], refuse: Callable[[], None] | None) -> None:
        self.has_compiled = False
        self._fall_back = fall_back
        self._seconds = 0.0
        self.end = nothing if refuse is None else hooks.on_created_graph(refuse)
        self._compiled: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def take_seconds(self) -> float:
        """Seconds that compiling has taken since this was asked last."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def guard(self, model: nn.Module) -> Undo:
        """Guards the call that `compile_calls` has put on a model.

        A model is compiled once two training calls in a row have had the same shapes: the last batch of an epoch may be
        smaller. From then on, a call that would be compiled anew, such as one with other shapes, runs eagerly.
        """
        compiled, trains = vars(model)["_compiled_call_impl"], while_training(model)
        shapes: list[torch.Size] | None = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal shapes
            if torch.compiler.is_compiling() or is_in_backward() or not trains(model):
                return _eagerly(model, compiled, *args, **kwargs)
            how: Callable[..., Any] = _without_compiling
            is_first = model not in self._compiled
            if is_first:
                former, shapes = shapes, [tensor.shape for tensor in tensors_in((args, kwargs))]
                how = self._compile if shapes == former else _eagerly
            restore = restoring(model, [(one, one.detach().clone()) for one in model.buffers()] if is_first else [])
            try:
                return how(model, compiled, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever compilers raise; an error of the script comes again
                self._fall_back(error)
            restore()
            return model(*args, **kwargs)

        return put(model, "_compiled_call_impl", call)

    def _compile(self, model: nn.Module, compiled: Any, *args: Any, **kwargs: Any) -> Any:
        began = perf_counter()
        self._compiled.add(model)
        self.has_compiled = True
        try:
            with compiled_apart(model):
                return compiled(*args, **kwargs)
        finally:
            self._seconds += perf_counter() - began


def _eagerly(model: nn.Module, _: Any, *args: Any, **kwargs: Any) -> Any:
    return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def _without_compiling(_: nn.Module, compiled: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.compiler.set_stance("eager_on_recompile"):
        return compiled(*args, **kwargs)
