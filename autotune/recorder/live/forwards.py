"""Whether convolutions may compute in another layout: what the first forward passes of a training show.

In another layout, a convolution returns tensors with other strides. Torch's own operators take any strides. Code of the
script may not, so it must not see such a tensor: neither outside the model, nor in a backward pass of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ...torch_settings.naming import tensors_in

MOST_CALLS, MOST_NODES = 4, 100_000
"""Calls of each model that are looked at, and nodes of an autograd graph. Not tuned."""

_REGISTERED = {"_parameters", "_buffers", "_modules"}
_HOOKS = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"}


class Forwards:
    """Looks at calls of models in training, and of their parts."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._hooked: str | None = None
        self._calls: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._depth = 0
        self._model: nn.Module | None = None
        self._states: list[bytes] = []
        self._kept: set[int] = set()  # tensors that its parts hold, besides weights and buffers
        self._entered: tuple[Any, ...] | None = None  # by the part that was entered last, as long as it calls no other

    def begin(self, model: nn.Module) -> None:
        """Before a call of a model that is no part of another one."""
        if self._reason is None and self._calls.get(model, 0) < MOST_CALLS:
            self._model, self._depth, self._entered, self._states = model, 0, None, _random_states()
            self._kept = {id(tensor) for tensor in _held(model)}

    def enter(self, arguments: tuple[Any, ...]) -> None:
        """Before each call of the model or a part of it."""
        if self._model is not None:
            self._depth += 1
            self._look_for_draws(None)
            self._entered = arguments

    def leave(self, returned: Any) -> None:
        """After each such call."""
        if self._model is None:
            return
        self._look_for_draws(None if self._entered is None else (*self._entered, returned))
        self._depth, self._entered = self._depth - 1, None
        if not self._depth:
            model, self._model = self._model, None
            self._calls[model] = self._calls.get(model, 0) + 1
            if any(id(tensor) not in self._kept for tensor in _held(model)):
                self._reason = "the model keeps what it computes, for the script to see"
            self._reason = self._reason or _why_not(returned)

    def why_not(self, models: Iterable[nn.Module]) -> str | None:
        """Why convolutions of these models keep their layout; None where nothing speaks against another one."""
        models = list(models)
        if any(model not in self._calls for model in models):
            return self._reason or "a model was not seen to be called in training"
        return self.why_hooked(models) or self._reason

    def why_hooked(self, models: Iterable[nn.Module]) -> str | None:
        """Which hooks of the script look into these models; None where none does."""
        for model in models:
            if any(hooks for part in model.modules() for name, hooks in vars(part).items() if name in _HOOKS):
                return "hooks of the script see what the model computes"
            if any(weight._backward_hooks for weight in model.parameters()):
                return "hooks of the script see gradients of the model"
        return self._hooked

    def hook(self) -> None:
        """The script asks to see the gradient of a tensor."""
        if self._model is not None:
            self._hooked = "hooks of the script see gradients within the model"

    def _look_for_draws(self, values: tuple[Any, ...] | None) -> None:
        """Looks whether random numbers were drawn: by a part that calls no other and has these values, or elsewhere."""
        states, former = _random_states(), self._states
        self._states = states
        if states != former and (values is None or any(tensor.dim() >= 3 for tensor in tensors_in(values))):
            self._reason = (
                "the model draws random numbers for images, as dropout does, and their order follows the layout"
            )


def _random_states() -> list[bytes]:
    states = [torch.get_rng_state()]
    if torch.cuda._initialized:  # else asking would start CUDA
        states += torch.cuda.get_rng_state_all()
    elif torch.backends.mps.is_available():
        states.append(torch.mps.get_rng_state())
    return [state.numpy().tobytes() for state in states]


def _held(model: nn.Module) -> Iterator[torch.Tensor]:
    """The tensors that the parts of a model hold, besides weights and buffers."""
    for part in model.modules():
        yield from tensors_in([value for name, value in vars(part).items() if name not in _REGISTERED])


def _why_not(returned: Any) -> str | None:
    """Why a model that has just been called keeps its layout."""
    if not _is_known(returned):
        return f"the model returns a {type(returned).__qualname__}, whose tensors cannot be laid out again"
    if not all(tensor.is_contiguous() for tensor in tensors_in(returned)):
        return "the model returns tensors that are not contiguous, whose strides would change"
    if _has_own_backward(tensors_in(returned)):
        return "a part of the model has a backward pass of its own"
    return None


def _is_known(returned: Any) -> bool:
    """Whether it holds tensors only where `each_tensor` changes them."""
    if isinstance(returned, dict):
        return all(map(_is_known, returned.values()))
    if type(returned) in {list, tuple} or hasattr(returned, "_fields"):
        return all(map(_is_known, returned))
    return returned is None or isinstance(returned, (torch.Tensor, bool, int, float, str))


def _has_own_backward(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether Python or an extension computes some gradients, as far as the graph can be seen."""
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction) or "CppNode" in node.name():
            return True
        waiting += [following for following, _ in node.next_functions if following is not None]
    return bool(waiting)
