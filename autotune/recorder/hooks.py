"""Hooks into torch that watch a training loop: loaders, losses, models, optimizers.

Each function returns another one that stops watching: it drops the callbacks, and restores torch's own function or
removes the hook where possible. A hook that stays does nothing, and takes about a microsecond per optimizer step.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, get_worker_info

from ..torch_settings.compiled import compiled_graphs
from ..torch_settings.naming import class_of, find_models, model_key
from ..torch_settings.undo import Undo, in_reverse, nothing, put

Iterate = Callable[["DataLoader[Any]"], Iterator[Any]]
MOST_CALLS = 100
"""Calls of models in training after which the search for the tuned ones ends. Not tuned."""


def on_iterate(then: Callable[[DataLoader[Any], Iterate], Iterator[Any]]) -> Undo:
    """Calls ``then(loader, iterate)`` in place of each ``iter(loader)``, except within workers."""
    original, callbacks = DataLoader.__iter__, [then]

    @functools.wraps(original)
    def iterate(self: DataLoader[Any]) -> Iterator[Any]:
        return callbacks[0](self, original) if callbacks and get_worker_info() is None else original(self)

    return in_reverse([put(DataLoader, "__iter__", iterate), callbacks.clear])


def on_step(before: Callable[[Optimizer], None] = nothing, after: Callable[[Optimizer], None] = nothing) -> Undo:
    """Calls functions before and after each step of any optimizer of torch."""
    if before is not nothing:
        register_optimizer_step_pre_hook(lambda stepping, *_: before(stepping))
    if after is not nothing:
        register_optimizer_step_post_hook(lambda stepping, *_: after(stepping))

    def end() -> None:
        nonlocal before, after
        before = after = nothing  # the hooks stay: torch calls them from a dictionary that must not change meanwhile

    return end


def on_mode(then: Callable[[Any, bool], None]) -> Undo:
    """Calls ``then(module, training)`` before each switch of a module to training or evaluation."""
    return _around(nn.Module, "train", lambda module, mode=True: then(module, mode))


def on_backward(before: Callable[[torch.Tensor], None], after: Callable[[], None] = nothing) -> Undo:
    """Calls ``before(loss)`` and ``after()`` around each ``loss.backward()``."""
    return _around(torch.Tensor, "backward", lambda loss, *_, **__: before(loss), lambda *_, **__: after())


def on_tensor_hook(then: Callable[[], None]) -> Undo:
    """Calls ``then()`` before a hook is registered on a tensor."""
    return _around(torch.Tensor, "register_hook", lambda *_, **__: then())


def on_created_graph(then: Callable[[], None]) -> Undo:
    """Calls ``then()`` before each backward pass that makes a graph of the gradients."""

    def passes(place: int) -> Callable[..., None]:
        def before(*args: Any, **kwargs: Any) -> None:
            if any((*args[place : place + 1], kwargs.get("create_graph"))):
                then()

        return before

    places = {"backward": 3, "grad": 4}  # of `create_graph`. `Tensor.backward` calls the first function.
    return in_reverse([_around(torch.autograd, name, passes(place)) for name, place in places.items()])


def on_scale(then: Callable[[torch.amp.GradScaler], None]) -> Undo:
    """Calls ``then(scaler)`` after each scaling of a loss by a GradScaler."""
    return _around(torch.amp.GradScaler, "scale", after=lambda scaler, *_, **__: then(scaler))


def on_autocast(then: Callable[[str], None]) -> Undo:
    """Calls ``then(device)`` after each entry into autocast."""
    return _around(torch.autocast, "__enter__", after=lambda mode: then(mode.device))


def on_gradients_again(then: Callable[[], None]) -> Undo:
    """Calls ``then()`` after each exit from a context without gradients that enables them again."""

    def left(*_: Any) -> None:
        if torch.is_grad_enabled():
            then()

    contexts = (torch.no_grad, torch.inference_mode, torch.set_grad_enabled)
    return in_reverse([_around(context, "__exit__", after=left) for context in contexts])


def on_group(then: Callable[[], None]) -> Undo:
    """Calls ``then()`` before each opening of a process group by the script."""
    if not torch.distributed.is_available():
        return nothing
    return _around(torch.distributed, "init_process_group", lambda *_, **__: then())


def on_function(name: str, then: Callable[..., None]) -> Undo:
    """Calls ``then`` with the arguments before each call of a function of `torch.nn.functional`.

    Compiled code calls it too, as part of its graph, so there it must only set an attribute.
    """
    return _unless_compiled(_around(torch.nn.functional, name, then))


def _unless_compiled(undo: Undo) -> Undo:
    """An undo that does nothing once torch.compile has compiled anything: undoing would recompile all."""
    return lambda: None if compiled_graphs() else undo()


def _around(owner: Any, name: str, before: Callable[..., None] = nothing, after: Callable[..., None] = nothing) -> Undo:
    """Calls functions before and after each call of a torch function, with its arguments."""
    original: Any = getattr(owner, name)

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        returned = original(*args, **kwargs)
        after(*args, **kwargs)
        return returned

    put_back = put(owner, name, called)

    def end() -> None:
        nonlocal before, after
        before = after = nothing
        put_back()

    return end


def on_outermost_forward(
    before: Callable[[Any, tuple[Any, ...]], None],
    inside: Callable[[tuple[Any, ...]], None] = nothing,
    after: Callable[[Any], None] = nothing,
) -> Undo:
    """Calls a function before each call of a module that no other module calls.

    Args:
        before: Receives the module and its arguments.
        inside: Receives the arguments of each module within.
        after: Receives the result of each module; None if it failed.
    """
    # Torch warns about global hooks when a compiled model is called, but the script has not registered them.
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    # torch.compile knows this and leaves out the code after it: the script's graphs stay the same.
    is_compiling = torch.compiler.is_compiling
    depth = 0

    def entering(module: Any, arguments: tuple[Any, ...]) -> None:
        if is_compiling():
            return
        nonlocal depth
        depth += 1
        if depth == 1:
            before(module, arguments)
        else:
            inside(arguments)

    def left(_: Any, __: Any, returned: Any) -> None:
        if is_compiling():
            return
        nonlocal depth
        depth -= 1
        after(returned)

    handles = (
        modules.register_module_forward_pre_hook(entering),
        modules.register_module_forward_hook(left, always_call=True),
    )
    remove = _unless_compiled(in_reverse([handle.remove for handle in handles]))

    def end() -> None:
        nonlocal before, inside, after
        before = inside = after = nothing
        remove()

    return end


def when_called(keys: Sequence[str], then: Callable[[list[Any]], None], most_calls: int | None = MOST_CALLS) -> Undo:
    """Calls ``then(models)`` once, before the first training call of a model with one of these keys, or of its holder.

    Args:
        keys: Keys as `naming.model_key` makes them.
        then: Receives all models with these keys.
        most_calls: Calls in training after which it stops waiting; None for no limit.
    """
    named = {key.split(" ", 1)[0] for key in keys}
    calls = 0

    def before(called: Any, _: tuple[Any, ...]) -> None:
        nonlocal calls
        if not torch.is_grad_enabled():
            return
        calls += 1
        if any(class_of(part) in named and model_key(part) in keys for part in called.modules()):
            end()
            then(find_models(list(keys)))
        elif most_calls is not None and calls >= most_calls:
            end()

    end = on_outermost_forward(before)
    return end


Method = TypeVar("Method", bound=Callable[..., Any])


def harmless(method: Method) -> Method:
    """Wraps a method: if it fails, it calls its object's ``give_up(reason)``, and training continues."""

    @functools.wraps(method)
    def tried(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:  # noqa: BLE001 - a full disk, a device that has failed, a script's own strange parts
            self.give_up(f"{type(error).__name__}: {error}")

    return tried  # type: ignore[return-value]
