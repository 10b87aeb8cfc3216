"""Keys that identify a script's loaders and models across its runs."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import inspect
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

DEEPEST = 8
"""Nested containers of a batch that are searched for tensors: parts may refer back to each other."""


def arguments_of(made: Any, by: type) -> dict[str, Any]:
    """The arguments that an object was made with, as far as it keeps them and they are plain values.

    Args:
        made: The object.
        by: The class whose arguments they are: torch's ``DataLoader`` or ``DistributedDataParallel``.
    """
    own = {name: getattr(made, name) for name in inspect.signature(by).parameters if hasattr(made, name)}
    own = {name: value.get_start_method() if isinstance(value, BaseContext) else value for name, value in own.items()}
    return {name: value for name, value in own.items() if value is None or isinstance(value, (bool, int, float, str))}


def loader_key(loader: Any) -> str:
    """Identifies a loader by its data set and how it draws from it."""
    dataset = loader.dataset
    if is_own_batch_sampler(loader):
        parts: tuple[Any, ...] = (type(loader.batch_sampler).__qualname__,)
    else:
        sampler, size, drops = batches_of(loader)
        parts = (size, type(sampler).__qualname__, drops)
    parts = (class_of(dataset), length_of(dataset), *parts)
    return " ".join(map(str, parts))


def queue_of(loader: Any) -> int:
    """Batches that a loader's workers prepare in advance."""
    return int(loader.num_workers * (loader.prefetch_factor or 0))


def start_method() -> str:
    """How workers start where a loader does not say. Asking here does not choose it; `multiprocessing`'s own does."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def is_own_batch_sampler(loader: Any) -> bool:
    """Whether the script makes batches of indices itself."""
    from torch.utils.data import BatchSampler

    return loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler


def has_own_iterator(loader: Any) -> bool:
    """Whether a loader's class makes its own iterator, as in PyG: no plain loader could make its batches."""
    from torch.utils.data import DataLoader

    return type(loader)._get_iterator is not DataLoader._get_iterator


def loader_kind(key: str) -> tuple[str, str]:
    """The part of a key that does not depend on batch size or length: the classes of data set and sampler.

    A distributed sampler counts as random: each of several ranks draws a share of one shuffled order.
    """
    parts = key.split()
    sampler = parts[3] if len(parts) > 3 else parts[-1]
    return parts[0], "RandomSampler" if sampler == "DistributedSampler" else sampler


def without_length(key: str) -> list[str]:
    """A key without the data set's length, which varies where data are split at random."""
    parts = key.split()
    return [*parts[:1], *parts[2:]]


def batches_of(loader: Any) -> tuple[Any, int | None, bool]:
    """Sampler, batch size, and whether an incomplete batch is dropped; also if they came as a batch sampler."""
    source = loader.batch_sampler if loader.batch_sampler is not None and loader.batch_size is None else loader
    return source.sampler, source.batch_size, source.drop_last


def model_key(model: nn.Module) -> str:
    """Identifies a model by its class and the shapes of its weights."""
    return f"{class_of(model)} {shapes_hash(model)}"


def shapes_hash(*models: nn.Module) -> str:
    """Hash of the shapes of all weights."""
    return hash_of_shapes(weight for model in models for weight in parameters_of(model))


def hash_of_shapes(weights: Iterable[torch.Tensor]) -> str:
    """Hash of the shapes of weights, in any order."""
    return fingerprint_of(sorted(map(_shape_of, weights)))


def fingerprint_of(parts: Iterable[str]) -> str:
    """Hash of some texts, in their order."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """The weights of a model; none if it has no parts yet, because its ``__init__`` never called torch's."""
    with contextlib.suppress(Exception):  # a class of the script's may raise in other ways
        return list(model.parameters())
    return []


def _shape_of(weight: torch.Tensor) -> str:
    try:
        return str(tuple(weight.shape))
    except RuntimeError:  # a lazy module that has not been called yet
        return "not known yet"


def weights_of(*optimizers: Optimizer) -> list[nn.Parameter]:
    """The weights that optimizers step, group by group."""
    return [weight for optimizer in optimizers for group in optimizer.param_groups for weight in group["params"]]


def find_models(keys: list[str]) -> list[nn.Module]:
    """The models in this process with these keys, one for each; empty unless all exist.

    Among models with the same key, such as a model and an average of its weights, one with an optimizer comes first.
    Objects are selected by type alone: touching them might run code of the script.
    """
    from torch import nn
    from torch.optim import Optimizer

    named = {key.split(" ", 1)[0] for key in keys}
    alike: dict[str, list[nn.Module]] = {}
    stepped: set[int] = set()
    for one in gc.get_objects():
        kind = type(one)
        if issubclass(kind, nn.Module) and class_of(one) in named:
            alike.setdefault(model_key(one), []).append(one)
        elif issubclass(kind, Optimizer):
            groups = one.__dict__.get("param_groups", ())
            stepped |= {id(weight) for group in groups for weight in group["params"]}
    chosen: list[nn.Module] = []
    for key in keys:
        free = [one for one in alike.get(key, ()) if not any(one is other for other in chosen)]
        if not free:
            return []
        chosen.append(next((one for one in free if holds_any(one, stepped)), free[0]))
    return chosen


def class_of(thing: object) -> str:
    """An object's class with its module; ``__main__`` also for the script's module in a worker."""
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}".replace("__mp_main__", "__main__")


def length_of(sized: Any) -> int | None:
    """``len()`` of an object; None if it has none."""
    try:
        return len(sized)
    except Exception:  # noqa: BLE001 - a class of the script's may raise anything
        return None


def tensors_in(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yields all tensors in a batch of mappings, sequences and dataclasses, or in one object's attributes, in order."""
    import torch

    if isinstance(batch, torch.Tensor):
        yield batch
        return
    parts: Any = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    elif dataclasses.is_dataclass(batch):
        parts = (getattr(batch, field.name, None) for field in dataclasses.fields(batch))
    elif depth == 0 and isinstance(attributes := getattr(batch, "__dict__", None), dict):
        parts = attributes.values()
    if depth < DEEPEST:
        for part in parts:
            yield from tensors_in(part, depth + 1)


_ROWS, _COLUMNS = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_STORED = {
    "torch.sparse_coo": ("_indices", "_values"), "torch.sparse_csr": _ROWS, "torch.sparse_bsr": _ROWS,
    "torch.sparse_csc": _COLUMNS, "torch.sparse_bsc": _COLUMNS,
}  # fmt: skip
"""What a sparse tensor stores, by layout; these are its methods."""


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's values; of a sparse one, what it stores."""
    stored = _STORED.get(str(tensor.layout))
    return tensor.nbytes if stored is None else sum(getattr(tensor, part)().nbytes for part in stored)


def count_of(batch: Any) -> int:
    """Number of samples in a batch: the first dimension of its first tensor with dimensions; 1 if there is none."""
    return next((int(tensor.shape[0]) for tensor in tensors_in(batch) if tensor.dim()), 1)


def steps_any(optimizer: Optimizer, models: list[nn.Module]) -> bool:
    """Whether an optimizer steps weights of any of these models."""
    stepped = {id(weight) for weight in weights_of(optimizer)}
    return any(holds_any(model, stepped) for model in models)


def holds_any(model: nn.Module, weights: set[int]) -> bool:
    """Whether a model has any of these weights, which are named by their ids."""
    return any(id(weight) in weights for weight in parameters_of(model))


def models_of(optimizer: Optimizer, keys: list[str]) -> list[nn.Module]:
    """The models with these keys whose weights an optimizer steps."""
    from torch import nn

    named = {key.split(" ", 1)[0] for key in keys}
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and class_of(one) in named]
    return [one for one in modules if model_key(one) in keys and steps_any(optimizer, [one])]


def wrapped_in(model: nn.Module) -> list[nn.Module]:
    """A model, and the models that it only wraps, as DistributedDataParallel and compiled modules do."""
    chain = [model]
    for one in chain:  # grows as it goes
        inner = (getattr(one, name, None) for name in ("module", "_orig_mod"))
        chain += [part for part in inner if part is not None and part not in chain]
    return chain
