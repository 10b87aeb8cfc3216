"""Memory layout of images: convolutions compute channels-last, and weights stay as the script has made them.

A fused optimizer pairs the elements of a weight, its gradient and its moments by address, unchecked: if one of them has
other strides, it silently trains another model. Checkpoints are refused by some formats unless they are contiguous.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from .undo import Undo, in_reverse, nothing
from .wrapping import each_tensor, is_in_backward, is_transformed, is_wrapped, while_training, wrap_forward

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from ..knobs.config import TrainConfig


class _Thread(threading.local):
    """Whether a thread is within a call of a model."""

    def __init__(self) -> None:  # called in each thread; dynamo refuses an attribute that is made later
        self.is_inside = False

    def __reduce__(self) -> tuple[type[_Thread], tuple[()]]:  # as cloudpickle saves a model's forward
        return _Thread, ()


def convolve_channels_last(model: nn.Module, config: TrainConfig) -> Undo:
    """Makes a model's convolutions of images compute channels-last while it trains.

    Weights, gradients, moments and checkpoints keep their layout. What is returned by the model, or by a part of it
    that is called by itself, is contiguous, since the script may view it. A call in which hooks see what parts compute
    keeps the layout.

    A step takes 1.02 x as long as with weights laid out, which are copied in each one here (geometric mean of four
    networks on two cores in fp32 and bf16; 0.99 to 1.08), and 1.02 x compiled (a U-Net).
    """
    if config.memory_format != "channels_last" or _is_replicated(model):
        return nothing
    import torch

    trains, this_thread = while_training(model), _Thread()
    parts = {part: [*part.modules()][1:] for part in entries(model)}
    converted: set[int] = set()  # ids of convolutions whose last call in a forward pass was channels-last

    def converts(part: nn.Module) -> bool:
        if torch.compiler.is_compiling():
            return this_thread.is_inside
        if is_in_backward():  # checkpointing repeats a call: dropout, which draws in memory order, must draw the same
            return id(part) in converted
        (converted.add if this_thread.is_inside else converted.discard)(id(part))
        return this_thread.is_inside

    def enters(part: nn.Module) -> bool:
        if this_thread.is_inside or not trains(part):
            return False
        return (torch.compiler.is_compiling() or not is_in_backward()) and not _hooks_see_within(part, parts)

    def calling(forward: Any, *args: Any, **kwargs: Any) -> Any:
        this_thread.is_inside = True
        try:
            named = dict(zip(kwargs, map(_giving_contiguous, kwargs.values()), strict=True))
            return each_tensor(forward(*map(_giving_contiguous, args), **named), _contiguous)
        finally:
            this_thread.is_inside = False

    undos: list[Undo] = []
    for part in _convolutions(model, 2):
        # Unlike backward(), torch.autograd.grad() does not give a gradient the layout of its weight.
        images = filter(is_image, part.parameters())
        undos += [_give_contiguous(weight) for weight in images if weight.requires_grad and weight.is_contiguous()]
        undos.append(wrap_forward(part, _convolving, converts))
    return in_reverse([*undos, *(wrap_forward(part, calling, enters) for part in entries(model))])


def _hooks_see_within(model: nn.Module, parts: dict[nn.Module, list[nn.Module]]) -> bool:
    """Whether hooks of the script see what parts of a model receive or return, or the gradients of that.

    Args:
        model: The model. What its own hooks see has the script's layout anyway.
        parts: The parts of each model; those of a copy are looked up.
    """
    for part in parts[model] if model in parts else [*model.modules()][1:]:
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks:
            hooks = [part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks]
            if not all(_is_known(hook) for those in hooks for hook in those.values()):
                return True
    return False


def _is_known(hook: Any) -> bool:
    """Whether a hook is torch's, as of a sharded model or a normalized weight, or ours: these take any layout."""
    return str(getattr(hook, "__module__", "")).startswith(("torch.", "autotune."))


def entries(model: nn.Module) -> list[nn.Module]:
    """A model, and those of its parts that convolve images within: a script may call each of them by itself."""
    return [part for part in model.modules() if part is model or any(one is not part for one in _convolutions(part, 2))]


def _convolving(forward: Any, *args: Any, **kwargs: Any) -> Any:
    named = dict(zip(kwargs, map(as_channels_last, kwargs.values()), strict=True))
    return forward(*map(as_channels_last, args), **named)


def _is_replicated(model: nn.Module) -> bool:
    """Whether threads call copies of a part at once; a copy would call the wrapped forward of the original."""
    from torch import nn

    return any(isinstance(part, nn.DataParallel) and len(part.device_ids) > 1 for part in model.modules())


def convolved(models: Iterable[nn.Module]) -> list[int]:
    """The dimensions that models convolve in; 2 for images."""
    return [number for number in (1, 2, 3) if any(_convolutions(model, number) for model in models)]


def _convolutions(model: nn.Module, dimensions: int) -> list[nn.Module]:
    from torch.nn.modules.conv import _ConvNd

    return [part for part in model.modules() if isinstance(part, _ConvNd) and len(part.kernel_size) == dimensions]


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.contiguous() if tensor.layout is torch.strided else tensor


def _give_contiguous(tensor: torch.Tensor) -> Undo:
    """Makes a tensor's gradient contiguous."""
    remove: Undo = tensor.register_hook(_contiguous).remove  # type: ignore[no-untyped-call]
    return remove


def _giving_contiguous(argument: Any) -> Any:
    """An argument of a model; the gradient of a tensor is contiguous, except in compiled code."""
    import torch

    if isinstance(argument, torch.Tensor) and argument.requires_grad and not torch.compiler.is_compiling():
        argument = argument.view_as(argument)
        _give_contiguous(argument)
    return argument


def is_image(value: Any) -> bool:
    """Whether a value is a tensor that can be laid out as channels-last, by its numbers, dimensions and memory."""
    import torch
    from torch.nn.parameter import UninitializedParameter

    if not isinstance(value, torch.Tensor) or isinstance(value, UninitializedParameter) or value.is_nested:
        return False
    if value.layout is not torch.strided or value.dim() != 4 or not value.is_floating_point():
        return False
    return torch.compiler.is_compiling() or not is_transformed(value)


def as_channels_last(value: Any) -> Any:
    """An image as channels-last; anything else as it is."""
    import torch

    # Not contiguous(): with one channel both layouts are alike in memory, and it would keep the old strides, from which
    # the next layer derives its layout.
    return value.to(memory_format=torch.channels_last) if is_image(value) else value


def layout_of(model: nn.Module | None, *_: object) -> str | None:
    """``channels_last`` if all convolutions of images compute so, by themselves or because their weights lie so.

    Else ``contiguous``; None if there is none, or no weight is conclusive: a tensor of one channel, or of one pixel,
    has both layouts at once.
    """
    import torch

    convolutions = [] if model is None else _convolutions(model, 2)
    if convolutions and all(is_wrapped(part, _convolving) for part in convolutions):
        return "channels_last"
    images = [weight for part in convolutions for weight in part.parameters() if is_image(weight)]
    ways = [(weight.is_contiguous(memory_format=torch.channels_last), weight.is_contiguous()) for weight in images]
    if all(way == (True, True) for way in ways):
        return None
    return "channels_last" if all(last for last, _ in ways) else "contiguous"


def lay_out_state(optimizer: Optimizer) -> None:
    """Gives an optimizer's state of each weight, such as moments, the strides of that weight."""
    import torch

    for weight, state in optimizer.state.items():
        for name, value in state.items() if isinstance(weight, torch.Tensor) else ():  # an optimizer may keep others
            if _lies_otherwise(value, weight):
                state[name] = _laid_out_as(weight, value)


def lay_out_gradients(optimizer: Optimizer, *_: Any) -> None:
    """Gives each gradient the strides of its weight: DDP keeps those that a weight had when it was wrapped."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if _lies_otherwise(weight.grad, weight):
                weight.grad = _laid_out_as(weight, weight.grad)


def _lies_otherwise(value: Any, weight: Any) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or not value.layout is weight.layout is torch.strided:
        return False
    if value.stride() == weight.stride() or value.shape != weight.shape:  # the usual case first, in each step
        return False
    strides = zip(value.shape, value.stride(), weight.stride(), strict=True)
    return any(mine != theirs for size, mine, theirs in strides if size > 1)


def _laid_out_as(weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)
