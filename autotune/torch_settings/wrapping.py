"""Wrappers of a model's forward: half precision, recomputation in the backward pass, no cache in training."""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .precision import HALF, autocast, is_half
from .repeated_blocks import no_cache_in_training, recomputed, repeated_blocks, without_cache
from .undo import Undo, in_reverse, nothing, put

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..knobs.config import TrainConfig

_WITHIN = "_within_by_autotune"  # attribute of a wrapped forward: the wrapper's name, empty once undone; the forward


def wrap_forward(model: nn.Module, around: Any, applies: Callable[[nn.Module], bool] = lambda _: True) -> Undo:
    """Replaces a model's forward by ``around(forward, *args, **kwargs)``; once, also on a copy.

    A deep copy made meanwhile has it too, until the undo; a pickle does not.
    `torch.jit.trace` records the original forward: what it exports is the script's.

    Args:
        model: The model.
        around: Calls the original forward.
        applies: Whether to call ``around``; otherwise the original forward is called.
    """
    import torch

    forward = model.forward
    is_traced: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]
    if is_wrapped(model, around):  # a deep copy already has it
        return nothing
    within = [around.__qualname__, forward]  # shared with copies of the wrapper's attributes: no name once it is undone
    own = forward.__func__ if isinstance(forward, types.MethodType) and forward.__self__ is model else None

    def wrapped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call, args = (forward, args) if own is None else (own, (self, *args))
        if not within[0] or is_traced() or not applies(self):
            return call(*args, **kwargs)
        return around(call, *args, **kwargs)

    if own is not None:
        # TorchScript compiles the source of the model's own forward, with the wrapper's globals.
        names = getattr(own, "__globals__", wrapped.__globals__)
        wrapped = types.FunctionType(wrapped.__code__, names, closure=wrapped.__closure__)
        functools.update_wrapper(wrapped, own)  # transformers reads the signature: it must be the model's own
    setattr(wrapped, _WITHIN, within)
    # A method of the model: a deep copy, such as an average of the weights, gets its own.
    put_back = put(model, "forward", types.MethodType(wrapped, model))

    def undo() -> None:
        within[0] = ""
        put_back()

    return undo


def is_wrapped(model: nn.Module, around: Any) -> bool:
    """Whether `wrap_forward` has put this function around a model's forward."""
    forward: Any = model.forward
    while (within := getattr(forward, _WITHIN, None)) is not None:
        name, forward = within
        if name == around.__qualname__:
            return True
    return False


def checkpoint_blocks(model: nn.Module, config: TrainConfig) -> Undo:
    """Makes repeated blocks keep only their inputs: the backward pass recomputes each with the same dropout."""
    if config.checkpointing != "blocks":
        return nothing
    undos = [wrap_forward(part, no_cache_in_training) for part in without_cache(model)]
    groups = repeated_blocks(model, recomputable=True)
    return in_reverse([*undos, *(wrap_forward(block, recomputed) for group in groups for block in group)])


def checkpointed(model: nn.Module | None, *_: object) -> str | None:
    """``blocks`` if the backward pass recomputes them, else ``none``; None if there are no such blocks."""
    if model is None:
        return None
    if any(is_wrapped(part, recomputed) for part in model.modules()):
        return "blocks"
    return "none" if repeated_blocks(model, recomputable=True) else None


def autocast_forward(model: nn.Module, config: TrainConfig) -> Undo:
    """Trains a model in half precision by autocast around its forward; its loss is computed in full precision.

    It evaluates in its own precision.
    """
    if config.precision not in HALF:
        return nothing
    import torch

    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))

    def in_half(forward: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast(config.precision, device):
            out = forward(*args, **kwargs)
        return each_tensor(out, _in_fp32)

    return wrap_forward(model, in_half, while_training(model))


def while_training(model: nn.Module) -> Callable[[nn.Module], bool]:
    """Returns a test whether a model, or its copy, is called to train it: with gradients, and not in evaluation mode.

    A model that is in evaluation mode now may train in it.
    """
    import torch

    by_mode = model.training
    return lambda called: torch.is_grad_enabled() and (called.training or not by_mode)


def is_in_backward() -> bool:
    """Whether this thread computes gradients, which may call parts of the model again."""
    import torch

    task = getattr(torch._C, "_current_graph_task_id", None)  # private to torch, so it may disappear
    return task is not None and task() != -1


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether torch.func has wrapped a tensor, as by vmap."""
    import torch

    is_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", None)  # private to torch
    return is_wrapped is not None and bool(is_wrapped(tensor))


def is_transforming() -> bool:
    """Whether a transform of torch.func, such as grad, calls what runs now."""
    import torch

    peek = getattr(torch._C._functorch, "peek_interpreter_stack", None)  # private to torch
    return peek is not None and peek() is not None


def _in_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of half precision, cast to fp32."""
    return tensor.float() if is_half(tensor.dtype) else tensor


def each_tensor(out: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What a model returns or receives, with each tensor changed."""
    import torch

    if isinstance(out, torch.Tensor):
        return change(out)
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return type(out)(*(each_tensor(part, change) for part in out))
    if isinstance(out, (list, tuple)):
        return type(out)(each_tensor(part, change) for part in out)
    if isinstance(out, dict):  # also transformers' outputs, whose classes keep attributes and items in sync
        for name, part in list(out.items()):
            if (changed := each_tensor(part, change)) is not part:
                out[name] = changed
    elif dataclasses.is_dataclass(out) and not isinstance(out, type):
        given = out
        for name in [field.name for field in dataclasses.fields(given) if hasattr(given, field.name)]:
            if (changed := each_tensor(part := getattr(given, name), change)) is not part:
                out = copy.copy(given) if out is given else out
                object.__setattr__(out, name, changed)  # also of a frozen one
    return out
