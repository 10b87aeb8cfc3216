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


def repeated_blocks(model: nn.Module, *, recomputable: bool = False) -> list[list[nn.Module]]:
    """Returns the blocks of a model, in groups of alike ones; empty unless they hold most of its weights.

    Blocks are items of a ModuleList, ModuleDict or Sequential, and have parts of their own. Blocks are alike if their
    classes, the shapes of their tensors, and their float attributes are: a dropout's probability, say, is part of
    compiled code. Only the outermost blocks count: a list of experts within a block is part of it.

    Args:
        model: Where to look.
        recomputable: Only those whose forward may run twice: batch norms would count a batch twice.
    """
    groups = [group for group in _groups(model) if not (recomputable and _counts_batches(group[0]))]
    inside = sum(weight.numel() for weight in _weights(block for group in groups for block in group))
    looked_up = {id(weight) for weight in _weights(_embeddings(model))}
    multiplied = sum(weight.numel() for weight in _weights([model]) if id(weight) not in looked_up)
    return groups if inside and inside >= LEAST_SHARE * multiplied else []


def count_blocks(model: nn.Module, *, recomputable: bool = False) -> int:
    """Number of repeated blocks; 0 where nothing repeats."""
    return sum(map(len, repeated_blocks(model, recomputable=recomputable)))


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
    """Calls a block's forward; its activations are recomputed in the backward pass with the same random numbers."""
    import torch
    from torch.utils.checkpoint import checkpoint

    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)


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


def _counts_batches(block: nn.Module) -> bool:
    from torch.nn.modules.batchnorm import _NormBase
    from torch.nn.utils.spectral_norm import SpectralNorm

    return any(
        (isinstance(part, _NormBase) and part.track_running_stats)
        or any(isinstance(hook, SpectralNorm) for hook in part._forward_pre_hooks.values())
        for part in block.modules()
    )
