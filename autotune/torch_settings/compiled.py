"""Compiling a model or a loss, and keeping compiled code while a process plays other configs."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

from .repeated_blocks import no_cache_in_training, repeated_blocks, without_cache
from .undo import Undo, in_reverse, kept_on, nothing, put, take_kept
from .wrapping import wrap_forward

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..knobs.config import TrainConfig

GRAPHED = ("reduce-overhead", "max-autotune", "cudagraphs")
"""Modes that replay CUDA graphs."""
OWN_MODES = ("cudagraphs", "blocks", "loss")
"""Modes that Inductor does not have: CUDA graphs of eager kernels, which is a backend of torch; and the default mode
for each repeated block, or for the loss with the model in it, rather than for the whole model."""
CODE_DEPENDS_ON = (
    "batch_size", "precision", "fp8_linear", "memory_format", "sdpa_backend", "checkpointing", "compile_mode",
    "num_threads", "ddp_bucket_cap_mb", "strategy", "fsdp_param_dtype", "fp16_accumulation", "nvgemm",
)  # fmt: skip
"""The knobs that affect compiled code. Configs that differ in one of them share no code: dynamo would make the second
shape that a function sees a dynamic one, unlike a process that sees only one shape."""
_RECOMPILES = 8
"""Torch's own limit (`torch._dynamo.config.recompile_limit`), above which code runs eagerly."""
_GIVEN_AWAY = "collect_bw_donated_buffer_idxs"  # private to torch: which saved tensors a backward pass may overwrite
_MODE = "_mode_by_autotune"  # attribute of a compiled call
_apart: collections.Counter[str] = collections.Counter()  # graphs of `compiled_apart`


def compile_calls(model: nn.Module, config: TrainConfig) -> Undo:
    """Compiles the model's call in place, or the calls of its repeated blocks, so that ``state_dict()`` keeps its keys.

    Blocks that are alike share their compiled code. Compiled code is kept with the model, so applying the same config
    again compiles nothing.
    """
    mode = config.compile_mode
    if mode is None:
        return nothing
    kept, key = kept_on(model), _key(config)
    undos = [keep_gradients(model, config), _forget_sizes(kept.setdefault("sizes", {}), key)]
    if mode == "blocks":
        undos += [wrap_forward(part, no_cache_in_training) for part in without_cache(model)]
    calls = kept.setdefault("calls", {})
    if key not in calls:
        calls[key] = _blocks(model) if mode == "blocks" else _whole(model, mode)
        for _, call in calls[key]:
            setattr(call, _MODE, mode)
    undos += [put(part, "_compiled_call_impl", call) for part, call in calls[key]]
    return in_reverse(undos)


def compile_loss(loss: Callable[..., Any], config: TrainConfig) -> Callable[..., Any]:
    """Compiles a function of a model and a batch, if the mode is ``loss``; else returns it unchanged."""
    if config.compile_mode != "loss":
        return loss
    make = _compiled_loss if isinstance(loss, Hashable) else _compiled_loss.__wrapped__
    return make(loss, _key(config))


def compiled_mode(model: nn.Module | None, *_: object) -> str | None:
    """The mode in which a model's call, or a block's, is compiled; ``eager`` where neither is.

    None where a model has no blocks: compiling them would change nothing.
    """
    if model is None:
        return None
    for part in model.modules():
        if mode := getattr(vars(part).get("_compiled_call_impl"), _MODE, None):
            return str(mode)
    return "eager" if repeated_blocks(model) else None


@functools.lru_cache(maxsize=32)  # a loop that makes a new function for each epoch keeps no more than these
def _compiled_loss(loss: Callable[..., Any], _key: tuple[Any, ...]) -> Callable[..., Any]:
    import torch

    def call(*args: Any, **kwargs: Any) -> Any:
        return loss(*args, **kwargs)  # callable objects and partials cannot be compiled themselves

    call.__code__ = call.__code__.replace(co_name="call_loss")
    return torch.compile(call, **_understood(isolate_recompiles=True))


def _key(config: TrainConfig) -> tuple[Any, ...]:
    return tuple(getattr(config, name, None) for name in CODE_DEPENDS_ON)


def _whole(model: nn.Module, mode: str) -> list[tuple[nn.Module, Any]]:
    # Mode "loss" compiles the model as a part of the loss, and by itself where it is called elsewhere.
    own: dict[str, dict[str, Any]] = {"cudagraphs": {"backend": "cudagraphs"}, "loss": {}}
    how = own.get(mode, {"mode": mode}) | _understood(isolate_recompiles=True)
    return [(model, _compiled_call(model, _CALL.replace(co_name="call"), **how))]


def _blocks(model: nn.Module) -> list[tuple[nn.Module, Any]]:
    calls = []
    for number, group in enumerate(repeated_blocks(model)):
        code = _CALL.replace(co_name=f"call_block_{number}")
        # Room to compile each block of a group on its own, should torch distinguish them.
        limit = _understood(recompile_limit=max(_RECOMPILES, 2 * len(group)))
        calls += [(block, _compiled_call(block, code, **limit)) for block in group]
    return calls


def _call_of(model: nn.Module) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    return call  # type: ignore[return-value]


_CALL = _call_of(None).__code__  # type: ignore[arg-type]


def _compiled_call(model: nn.Module, code: types.CodeType, **how: Any) -> Callable[..., Any]:
    """The function that replaces a module's call.

    Like ``nn.Module.compile``, with a function in between: torch does not trace functions of its own files, so a model
    whose class is torch's (``nn.Sequential``) would silently run eagerly. Compiled code belongs to the function's code
    object, so blocks of another kind do not trigger dynamic shapes. `torch.jit.trace`, in an export say, refuses
    compiled code, so it records the model's own call.
    """
    import torch

    call = _call_of(model)
    call.__code__ = code
    compiled = torch.compile(call, **how)

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (call if torch.jit.is_tracing() else compiled)(*args, **kwargs)  # type: ignore[attr-defined, no-untyped-call]

    return chosen


def _forget_sizes(kept: dict[Any, Any], key: tuple[Any, ...]) -> Undo:
    """Makes dynamo remember the sizes that its functions have seen separately for each config, also after graph breaks.

    Dynamo remembers them by a function's name and line for the whole process.
    """
    from torch._dynamo import pgo

    return put(pgo, "_CODE_STATE", kept.setdefault(key, collections.defaultdict(pgo.CodeState)))


def _understood(**arguments: Any) -> dict[str, Any]:
    """The arguments that this version of `torch.compile` takes."""
    import torch

    return {name: value for name, value in arguments.items() if name in inspect.signature(torch.compile).parameters}


def keep_gradients(model: nn.Module, config: TrainConfig) -> Undo:
    """Keeps a model's gradients through the micro-batches of a step, each of which replays a CUDA graph."""
    if config.compile_mode not in GRAPHED or config.accumulation_steps == 1:
        return nothing
    from torch.nn.parameter import is_lazy

    weights = [weight for weight in model.parameters() if weight.requires_grad and not is_lazy(weight)]
    handles: list[Any] = [weight.register_post_accumulate_grad_hook(_own_gradient) for weight in weights]  # type: ignore[no-untyped-call]
    return in_reverse([handle.remove for handle in handles])


def _own_gradient(parameter: torch.Tensor) -> None:
    """Copies a gradient out of the memory of a CUDA graph, which the next micro-batch overwrites.

    The first micro-batch of a step leaves the graph's own tensor as the gradient, and torch refuses to add to it once
    the graph has run again. The copy is kept until the gradients are set to None; the next micro-batches add to it.
    """
    gradient = parameter.grad
    if gradient is not None and not getattr(gradient, "_is_own_copy", False):
        parameter.grad = gradient.clone()
        parameter.grad._is_own_copy = True  # type: ignore[attr-defined]  # lives as long as the tensor does


def compiled_graphs() -> int:
    """Graphs that torch.compile has compiled in this process, without those of `compiled_apart`."""
    utils = sys.modules.get("torch._dynamo.utils")
    graphs = int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0
    return max(0, graphs - _apart["graphs"])


def compiles_backward_early() -> bool:
    """Whether this torch can compile a backward pass within the forward pass, as `compiled_apart` does."""
    import torch._functorch.config as settings

    return hasattr(settings, "force_non_lazy_backward_lowering")  # private to torch, so it may be missing


def _backward_compiler() -> Any:
    """The module of torch that compiles backward passes.

    Raises:
        NotImplementedError: It is not known for this release.
    """
    for name in ("graph_compile", "jit_compile_runtime_wrappers"):  # the second one until 2.8
        with contextlib.suppress(ImportError):
            if hasattr(module := importlib.import_module(f"torch._functorch._aot_autograd.{name}"), _GIVEN_AWAY):
                return module
    raise NotImplementedError("this release of torch compiles the backward pass in another way")


@contextlib.contextmanager
def compiled_apart(model: nn.Module) -> Iterator[None]:
    """While open, a forward pass compiles the backward pass too, and graphs do not count as the script's.

    By default, the backward pass is compiled at the first `loss.backward()`, where nothing would catch its error. It
    would also overwrite what the forward pass has saved, so that no script could keep its graph; torch's setting for
    that holds for one thread, and on a GPU backward passes run in another one. And hooks that are added later would not
    be called. On the CPU, compiled code draws as eager code does, because samplers draw from the same generator.
    """
    import torch._dynamo.config as dynamo
    import torch._functorch.config as settings
    import torch._inductor.config as inductor
    import torch.compiler

    before, draws_alike = compiled_graphs(), not any(weight.is_cuda for weight in model.parameters())
    tag = f"{torch.compiler.config.cache_key_tag} keeps"  # code on disk that gives away what is saved has the same key
    give_away = put(_backward_compiler(), _GIVEN_AWAY, lambda *_, **__: [])
    try:
        with (
            torch.compiler.config.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
            dynamo.patch(skip_nnmodule_hook_guards=False),
            settings.patch(force_non_lazy_backward_lowering=True),
            inductor.patch(fallback_random=draws_alike or inductor.fallback_random),
        ):
            yield
    finally:
        give_away()
        _apart["graphs"] += compiled_graphs() - before


def forget_compiled(model: nn.Module) -> None:
    """Drops the code that `compile_calls` keeps with a model."""
    for what in ("calls", "sizes"):
        take_kept(model, what)
