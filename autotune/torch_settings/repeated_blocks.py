"""The repeated blocks of a model, such as the layers of a transformer: compiled once for all, or recomputed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

FEWEST_BLOCKS = 2
"""Fewest blocks of a kind: with fewer nothing repeats."""
LEAST_SHARE = 0.5
"""Least share of the multiplied weights in the blocks: else most of the work lies elsewhere. Not tuned."""


def repeated_blocks(model: nn.Module) -> list[list[nn.Module]]:
    """Returns the blocks of a model, in groups of alike ones; empty unless they hold most of its weights.

    Blocks are items of a ModuleList, ModuleDict or Sequential, and have parts of their own. Blocks are alike if their
    classes, the shapes of their tensors, and their float attributes are: a dropout's probability, say, is part of
    compiled code. Only the outermost blocks count: a list of experts within a block is part of it.
    """
    groups = list(_groups(model))
    inside = sum(weight.numel() for weight in _weights(block for group in groups for block in group))
    looked_up = {id(weight) for weight in _weights(_embeddings(model))}
    multiplied = sum(weight.numel() for weight in _weights([model]) if id(weight) not in looked_up)
    return groups if inside and inside >= LEAST_SHARE * multiplied else []


def count_blocks(model: nn.Module) -> int:
    """Number of repeated blocks; 0 where nothing repeats."""
    return sum(map(len, repeated_blocks(model)))


def without_cache(model: nn.Module) -> Iterator[nn.Module]:
    """Yields the parts that cache keys and values for generating text, as models of transformers do by default.

    Training never reads that cache. A recomputed block would write to it twice, and each block would need compiled
    code of its own, because each writes to another entry.
    """
    for part in model.modules():
        keeps = getattr(getattr(part, "config", None), "use_cache", None) is True
        if keeps and "use_cache" in inspect.signature(part.forward).parameters:
            yield part


def no_cache_in_training(forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a forward with ``use_cache=False``, unless the caller sets it, gives a cache, or computes no gradient."""
    import torch

    # Few arguments do not reach that far, and compiled code should not have to look at the signature.
    given = kwargs if len(args) < 2 else inspect.signature(forward).bind_partial(*args, **kwargs).arguments
    if torch.is_grad_enabled() and "use_cache" not in given and given.get("past_key_values") is None:
        kwargs["use_cache"] = False
    return forward(*args, **kwargs)


def recomputed(forward: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a block's forward; the backward pass recomputes its activations with the same random numbers and buffers.

    Compiled code would recompute from buffers that it has changed (seen with torch 2.13: gradients were off by a
    quarter), so blocks run eagerly if a checkpoint keeps statistics of theirs.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    block = getattr(forward, "__self__", None) or next(iter(args), None)
    if isinstance(block, torch.nn.Module) and (not torch.compiler.is_compiling() or _has_statistics(block)):
        forward = _repeatable(block, forward)
        checkpoint = torch.compiler.disable(checkpoint)  # type: ignore[no-untyped-call]
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)


def _has_statistics(block: nn.Module) -> bool:
    return any(
        name not in part._non_persistent_buffers_set and buffer is not None and buffer.is_floating_point()
        for part in block.modules()
        for name, buffer in part._buffers.items()
    )


def _repeatable(block: nn.Module, forward: Any) -> Any:
    """A block's forward for one batch: each further call finds the buffers that the first one found, and changes none.

    Otherwise, running statistics would count the batch twice, and a spectral norm would differ between the passes.
    """
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not found:
            found.extend((part._buffers, _copied(part._buffers)) for part in block.modules())
            return forward(*args, **kwargs)
        now = [dict(buffers) for buffers, _ in found]
        for buffers, copies in found:
            buffers.update(_copied(copies))  # other tensors: autograd may have kept the buffers themselves
        try:
            return forward(*args, **kwargs)
        finally:
            for (buffers, _), own in zip(found, now, strict=True):
                buffers.update(own)

    return call


def _copied(buffers: dict[str, Any]) -> dict[str, Any]:
    return {name: buffer.clone() for name, buffer in buffers.items() if buffer is not None}


def _groups(module: nn.Module) -> Iterator[list[nn.Module]]:
    from torch import nn

    alike: dict[object, list[nn.Module]] = {}
    if isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
        for child in dict.fromkeys(module.children()):
            if next(child.children(), None) is not None and next(child.parameters(), None) is not None:
                alike.setdefault(_likeness(child), []).append(child)
    groups = [group for group in alike.values() if len(group) >= FEWEST_BLOCKS]
    yield from groups
    taken = {id(block) for group in groups for block in group}
    for child in module.children():
        if id(child) not in taken:
            yield from _groups(child)


def _likeness(block: nn.Module) -> object:
    parts = tuple((name, type(part), _floats(part)) for name, part in block.named_modules())
    tensors = (*block.named_parameters(), *block.named_buffers())
    return parts, tuple((name, _shape(tensor), tensor.requires_grad) for name, tensor in tensors)


def _shape(tensor: Any) -> tuple[int, ...] | None:
    """None where the shape is unknown until the first batch."""
    from torch.nn.parameter import is_lazy

    return None if is_lazy(tensor) else tuple(tensor.shape)


def _floats(part: nn.Module) -> tuple[tuple[str, float], ...]:
    return tuple((name, value) for name, value in sorted(vars(part).items()) if type(value) is float)


def _weights(modules: Any) -> list[Any]:
    """The parameters of some modules, each once."""
    weights = {id(weight): weight for module in modules for weight in module.parameters()}
    return [weight for weight in weights.values() if _shape(weight) is not None]


def _embeddings(model: nn.Module) -> list[nn.Module]:
    """Lookup tables. A scoring layer that shares their weights still costs one product."""
    from torch import nn

    return [part for part in model.modules() if isinstance(part, (nn.Embedding, nn.EmbeddingBag))]
