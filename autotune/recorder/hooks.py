"""Where torch lets others watch a training loop: loaders, losses, models, optimizers.

Each function returns another one, which ends the watching: it drops the functions that were to be called, and puts
torch's own function back, or removes the hook, where that is possible. What stays does nothing: it takes about a
microsecond for each step of an optimizer.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .effects import compiled_graphs
from .naming import class_of, find_models, model_key
from .undo import Undo, in_reverse, put, unless_changed

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

Iterate = Callable[["DataLoader[Any]"], Iterator[Any]]
MOST_CALLS = 100
"""Of models in training, among which the ones that were tuned are looked for. Chosen."""


def _nothing(*_: Any, **__: Any) -> None:
    pass


def on_iterate(then: Callable[[DataLoader[Any], Iterate], Iterator[Any]]) -> Undo:
    """Calls ``then(loader, iterate)`` in the place of each ``iter(loader)``, but for those within workers."""
    from torch.utils.data import DataLoader, get_worker_info

    original, wanted = DataLoader.__iter__, [then]

    @functools.wraps(original)
    def iterate(self: DataLoader[Any]) -> Iterator[Any]:
        return wanted[0](self, original) if wanted and get_worker_info() is None else original(self)

    return in_reverse([replace(DataLoader, "__iter__", iterate), wanted.clear])


def on_step(before: Callable[[Optimizer], None] = _nothing, after: Callable[[Optimizer], None] = _nothing) -> Undo:
    """Calls functions before and after each step of any optimizer of torch."""
    from torch.optim import optimizer

    if before is not _nothing:
        optimizer.register_optimizer_step_pre_hook(lambda stepping, *_: before(stepping))
    if after is not _nothing:
        optimizer.register_optimizer_step_post_hook(lambda stepping, *_: after(stepping))

    def end() -> None:
        nonlocal before, after
        before = after = _nothing  # the hooks stay: torch calls them from a dictionary that must not change meanwhile

    return end


def on_mode(then: Callable[[Any, bool], None]) -> Undo:
    """Calls ``then(module, training)`` before each switch of a module to training, or to evaluation."""
    from torch import nn

    return _around(nn.Module, "train", lambda module, mode=True: then(module, mode))


def on_backward(before: Callable[[torch.Tensor], None], after: Callable[[], None] = _nothing) -> Undo:
    """Calls ``before(loss)`` and ``after()`` around each ``loss.backward()``."""
    import torch

    return _around(torch.Tensor, "backward", lambda loss, *_, **__: before(loss), lambda *_, **__: after())


def on_autocast(then: Callable[[str], None]) -> Undo:
    """Calls ``then(device)`` after each entry into autocast."""
    import torch

    return _around(torch.autocast, "__enter__", after=lambda mode: then(mode.device))


def on_gradients_again(then: Callable[[], None]) -> Undo:
    """Calls ``then()`` after each exit from a context without gradients, where they are wanted again."""
    import torch

    def left(*_: Any) -> None:
        if torch.is_grad_enabled():
            then()

    contexts = (torch.no_grad, torch.inference_mode, torch.set_grad_enabled)
    return in_reverse([_around(context, "__exit__", after=left) for context in contexts])


def on_group(then: Callable[[], None]) -> Undo:
    """Calls ``then()`` before each opening of a process group by the script."""
    import torch

    if not torch.distributed.is_available():
        return _nothing
    return _around(torch.distributed, "init_process_group", lambda *_, **__: then())


def on_attention(then: Callable[[], None]) -> Undo:
    """Calls ``then()`` before each call of torch's attention.

    Compiled code calls it too, as part of its graph: let it do no more than set an attribute.
    """
    import torch

    return _unless_compiled(_around(torch.nn.functional, "scaled_dot_product_attention", lambda *_, **__: then()))


def replace(owner: Any, name: str, function: Any) -> Undo:
    """Sets a function of torch's; its undo leaves alone what others have put in its place since."""
    return unless_changed(lambda: vars(owner).get(name), put(owner, name, function))


def _unless_compiled(undo: Undo) -> Undo:
    """Takes a change back unless torch.compile has compiled with it: to take it back would compile all again."""
    return lambda: None if compiled_graphs() else undo()


def _around(
    owner: Any, name: str, before: Callable[..., None] = _nothing, after: Callable[..., None] = _nothing
) -> Undo:
    """Calls functions around each call of one of torch's, with its arguments."""
    original: Any = getattr(owner, name)

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        returned = original(*args, **kwargs)
        after(*args, **kwargs)
        return returned

    put_back = replace(owner, name, called)

    def end() -> None:
        nonlocal before, after
        before = after = _nothing
        put_back()

    return end


def on_outermost_forward(
    before: Callable[[Any, tuple[Any, ...]], None],
    inside: Callable[[tuple[Any, ...]], None] = _nothing,
    after: Callable[[Any], None] = _nothing,
) -> Undo:
    """Calls a function before each call of a module that no other module calls.

    Args:
        before: Told the module, and what it is called with.
        inside: Told what each module within is called with.
        after: Told what each module has returned; None where it has failed.
    """
    import torch
    from torch.nn.modules import module as modules

    # Torch warns of global hooks where a compiled model is called: the script has not registered them.
    warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global hooks")
    # Known to torch.compile, which leaves out what comes after it: the script's graphs are the same as ever.
    is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)
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
        before = inside = after = _nothing
        remove()

    return end


def when_called(keys: Sequence[str], then: Callable[[list[Any]], None], most_calls: int | None = MOST_CALLS) -> None:
    """Calls ``then(models)`` once, before the first call in training of a model of these names, or of what holds one.

    Args:
        keys: As `naming.model_key` makes them.
        then: Told all models of these names.
        most_calls: In training, after which nobody is waited for any longer; None: waits for ever.
    """
    import torch

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
