"""How weights lie in memory, and what must lie alike: gradients, and the state of the optimizers that step them.

A fused optimizer pairs the elements of a weight, its gradient and its moments by address, on trust: where one of them
has other strides, it trains another model, and raises nothing. So what an optimizer saves lies as in a training without
the change, which may resume from it.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from .undo import Undo, nothing

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from .asked import Knobs

_followed: weakref.WeakSet[Optimizer] = weakref.WeakSet()
"""Optimizers that have stepped since `follow_weights`."""


def lay_out(model: nn.Module, config: Knobs) -> Undo:
    """Lays out tensors of four dimensions as channels-last; gradients and the state of optimizers follow.

    ``model.to(memory_format=…)`` would refuse a model with tensors of five dimensions.
    """
    if config.memory_format != "channels_last":
        return nothing
    import torch

    changed = []
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:
            data = tensor.data.to(memory_format=torch.channels_last)
            if data.stride() != tensor.stride():
                changed.append((tensor, tensor.stride()))
                _lay_before()[tensor] = tensor.stride()
            tensor.data = data
            _lie(tensor, data.stride())
    follow_weights()
    _lay_out_states()

    def undo() -> None:
        for tensor, strides in changed:
            _lie(tensor, strides)
            _lay_before().pop(tensor, None)
        _lay_out_states()

    return undo


def layout_of(model: nn.Module) -> str | None:
    """``channels_last`` where all weights of four dimensions lie so, else ``contiguous``; None where none shows it.

    A tensor of one channel, or of one pixel, lies both ways at once.
    """
    import torch
    from torch.nn.parameter import is_lazy

    images = [weight for weight in model.parameters() if not is_lazy(weight) and weight.dim() == 4]
    ways = [(weight.is_contiguous(memory_format=torch.channels_last), weight.is_contiguous()) for weight in images]
    if all(way == (True, True) for way in ways):
        return None
    return "channels_last" if all(last for last, _ in ways) else "contiguous"


def _lie(tensor: torch.Tensor, strides: tuple[int, ...]) -> None:
    """Gives a tensor and its gradient strides."""
    tensor.data = _with_strides(tensor.data, strides)
    if tensor.grad is not None:
        tensor.grad = _with_strides(tensor.grad, strides)


def _with_strides(data: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor itself, or a copy that lies so."""
    import torch

    if data.stride() == strides:
        return data
    return torch.empty_strided(data.shape, strides, dtype=data.dtype, device=data.device).copy_(data)


@functools.cache
def _lay_before() -> Any:
    """The strides of each tensor before it was laid out otherwise."""
    from torch.utils.weak import WeakIdKeyDictionary

    return WeakIdKeyDictionary()


def _lay_out_states() -> None:
    for optimizer in list(_followed):
        lay_out_state(optimizer)


@functools.cache
def follow_weights() -> None:
    """From here on the state of each optimizer has its weights' strides: at its first step, and after each load.

    What it saves has the strides that they had.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(_follow)


def _follow(optimizer: Optimizer, *_: Any) -> None:
    if optimizer not in _followed:
        _followed.add(optimizer)
        optimizer.register_load_state_dict_post_hook(lay_out_state)
        optimizer.register_state_dict_post_hook(_as_it_lay)
        lay_out_state(optimizer)


def lay_out_state(optimizer: Optimizer) -> None:
    """Gives what an optimizer knows of each weight, such as its moments, the strides of that weight."""
    import torch

    for weight, state in optimizer.state.items():
        if not (isinstance(weight, torch.Tensor) and weight.layout is torch.strided):  # an optimizer may keep others
            continue
        for name, value in state.items():
            like_it = isinstance(value, torch.Tensor) and value.shape == weight.shape
            if like_it and value.layout is torch.strided and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def _as_it_lay(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer saves, the state of each weight with the strides that the weight had."""
    import torch

    if not _lay_before():
        return saved
    states = dict(saved["state"])
    for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=False):  # the script may filter them
        for number, weight in zip(group["params"], own["params"], strict=False):
            strides = _lay_before().get(weight)
            if strides is not None and number in states:
                states[number] = {
                    name: _with_strides(value, strides)
                    if isinstance(value, torch.Tensor) and value.shape == weight.shape
                    else value
                    for name, value in states[number].items()
                }
    return {**saved, "state": states}
