"""Where torch lets somebody else look at a training loop: loaders, losses, optimizers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

Iterate = Callable[["DataLoader[Any]"], Iterator[Any]]


_home = [os.getpid()]
"""The process that is looked at: not the workers that it forks."""


def on_iterate(then: Callable[[DataLoader[Any], Iterate], Iterator[Any]]) -> None:
    """Calls ``then(loader, iterate)`` in the place of each ``iter(loader)`` of this process, not of its workers."""
    from torch.utils.data import DataLoader

    original = DataLoader.__iter__

    @functools.wraps(original)
    def iterate(self: DataLoader[Any]) -> Iterator[Any]:
        return then(self, original) if _home[0] == os.getpid() else original(self)

    DataLoader.__iter__ = iterate  # type: ignore[assignment]


def move_home() -> None:
    """To be called in a process that was forked to go on with the script: it is the one to look at now."""
    _home[0] = os.getpid()


def on_step(before: Callable[[Optimizer], None], after: Callable[[Optimizer], None]) -> None:
    """Calls functions before and after each step of any optimizer of torch."""
    from torch.optim import optimizer

    def starts(stepping: Optimizer, *_: Any) -> None:
        before(stepping)

    def ended(stepping: Optimizer, *_: Any) -> None:
        after(stepping)

    optimizer.register_optimizer_step_pre_hook(starts)
    optimizer.register_optimizer_step_post_hook(ended)


def on_backward(then: Callable[[torch.Tensor], None]) -> None:
    """Calls ``then(loss)`` before each ``loss.backward()``."""
    import torch

    original: Any = torch.Tensor.backward

    @functools.wraps(original)
    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        then(self)
        return original(self, *args, **kwargs)

    torch.Tensor.backward = backward  # type: ignore[method-assign]


def on_outermost_forward(before: Callable[[Any, tuple[Any, ...]], None]) -> Callable[[], None]:
    """Calls a function before each call of a module that no other module calls; returns what ends that."""
    from torch.nn.modules import module as modules

    depth = 0

    def entering(module: Any, arguments: tuple[Any, ...]) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            before(module, arguments)

    def left(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    handles = (
        modules.register_module_forward_pre_hook(entering),
        modules.register_module_forward_hook(left, always_call=True),
    )

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end
