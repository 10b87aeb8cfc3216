"""Describes a training that a look has seen: loaders, optimizers, models, and processes that train in parallel."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterable, Sequence
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset

from ..sandbox.system import children_of
from ..torch_settings.layout import convolved
from ..torch_settings.naming import (
    arguments_of,
    batches_of,
    class_of,
    has_own_iterator,
    is_own_batch_sampler,
    length_of,
    loader_key,
    shapes_hash,
    tensors_in,
    weights_of,
)
from ..torch_settings.packages import installed
from ..torch_settings.process_settings import FORMS, is_deterministic, why_no_form
from ..torch_settings.repeated_blocks import count_blocks
from .padding import Padding, padded_fractions

if TYPE_CHECKING:
    from torch.optim import Optimizer

SAMPLE_SECONDS, MOST_SAMPLES = 0.3, 16
UNKNOWN_READING = (1e-4, 1.0)
"""What `reading` returns for a data set that it cannot or must not read."""
SMALL_OPERATOR_MICROSECONDS = 20.0
"""Below this, most of an operator's time is call overhead."""
MOST_NAMED = 3
"""Models of a training that are named."""


def training_facts(
    models: Sequence[nn.Module], optimizers: Sequence[Optimizer], paddings: Sequence[Padding], *, may_fuse: bool
) -> dict[str, Any]:
    """What a look at a build() and one at a script both learn, by the names of `knobs.WorkloadFacts`.

    Args:
        models: The trained models.
        optimizers: Their optimizers, which have stepped; the first one is described.
        paddings: The padding of some batches.
        may_fuse: Whether the gradients of a step suit torch's fused form, by `why_gradients_unfit`.
    """
    weights = [weight for model in models for weight in model.parameters()]
    traffic = traffic_of(models, optimizers)
    padding_fraction, sorted_padding_fraction = padded_fractions(paddings)
    first = optimizers[0] if optimizers else None
    return {
        "model": model_facts(models, first),
        "parameters": sum(weight.numel() for weight in weights),
        "pass_bytes": traffic.pass_bytes,
        "update_bytes": traffic.update_bytes,
        "padding_fraction": padding_fraction,
        "sorted_padding_fraction": sorted_padding_fraction,
        "convolves": convolved(models),
        "packages": installed(),
        "repeated_blocks": sum(count_blocks(model) for model in models),
        "recomputable_blocks": sum(count_blocks(model, recomputable=True) for model in models),
        "optimizer_impls": [
            form
            for form in FORMS
            if first is not None and (may_fuse or form != "fused") and why_no_form(first, form) is None
        ],
        "deterministic": is_deterministic(),
    }


def model_facts(models: Sequence[nn.Module], optimizer: Optimizer | None) -> dict[str, Any]:
    """What distinguishes models and an optimizer from others, by the names of `knobs.ModelFacts`.

    They include only the shapes of weights, so a model has the same facts inside another one, such as a
    LightningModule.
    """
    weights = [weight for model in models for weight in model.parameters()]
    return {
        "name": names_of([type(model).__name__ for model in models]),
        "tensors": len(weights),
        "weights": sum(weight.numel() for weight in weights),
        "shapes": shapes_hash(*models),
        "optimizer": type(optimizer).__name__ if optimizer is not None else None,
    }


def names_of(models: Sequence[str]) -> str:
    """The names of models; only the first few are listed."""
    more = len(models) - MOST_NAMED
    return " and ".join([*models[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])]) or "unknown"


def merged(draws: list[tuple[int, int]], keys: dict[int, str]) -> list[tuple[int, int]]:
    """Draws in which a recreated loader has the id of its first version.

    A loader counts as recreated if its first draw follows the last draw of one with the same key. Two loaders with the
    same key that are drawn from in turn stay two.

    Args:
        draws: Loader id and number of samples of each draw, in order.
        keys: Key of each loader.
    """
    spans: dict[int, list[int]] = {}
    for place, (loader, _) in enumerate(draws):
        spans.setdefault(loader, [place, place])[1] = place
    stands_for: dict[int, int] = {}
    ends: dict[int, int] = {}
    for loader, (first, last) in spans.items():
        former = (one for one, end in ends.items() if keys[one] == keys[loader] and end < first)
        stands_for[loader] = next(former, loader)
        ends[stands_for[loader]] = last
    return [(stands_for[loader], count) for loader, count in draws]


def usual(counts: list[int]) -> int:
    """The median count; 0 for an empty list. A single skipped step would shift the mean."""
    return sorted(counts)[(len(counts) - 1) // 2] if counts else 0


def described(loader: Any) -> dict[str, Any]:
    """Describes a script's loader by DataLoader's arguments."""
    dataset = loader.dataset
    iterable = isinstance(dataset, IterableDataset)
    size = None if is_own_batch_sampler(loader) else batches_of(loader)[1]
    return {
        "key": loader_key(loader),
        "dataset": class_of(dataset),
        "samples": length_of(dataset),
        "iterable": iterable,
        "own_batches": is_own_batch_sampler(loader) or size is None,
        "own_iterator": has_own_iterator(loader),
        "arguments": {**arguments_of(loader, DataLoader), "batch_size": size},
        "reads_batches": reads_batches(dataset),
    }


def reads_batches(dataset: Any) -> bool:
    """Whether a worker may read a whole batch of a data set at once, rather than sample by sample."""
    while isinstance(dataset, Subset):  # a subset always has the method, and calls its data set's if that has one
        dataset = dataset.dataset
    return isinstance(dataset, IterableDataset) or hasattr(dataset, "__getitems__")


def reading(loader: Any) -> tuple[float, float]:
    """Seconds to read a sample, and the share of them in which no processor computed."""
    dataset: Any = getattr(loader, "dataset", None)
    length = length_of(dataset)
    if not length or not hasattr(dataset, "__getitem__"):
        return UNKNOWN_READING
    began, worked, read = perf_counter(), process_time(), 0
    try:
        while read < min(length, MOST_SAMPLES) and perf_counter() - began < SAMPLE_SECONDS:
            dataset.__getitem__((read * 7919) % length)
            read += 1
    except Exception:  # noqa: BLE001 - such as a data set that is indexed by lists
        return UNKNOWN_READING
    seconds = max(perf_counter() - began, 1e-9)
    return seconds / max(1, read), min(1.0, max(0.0, 1 - (process_time() - worked) / seconds))


def small_fraction(times: list[float]) -> float:
    """The share of time spent in small operators, from each operator's microseconds."""
    small = sum(time for time in times if time < SMALL_OPERATOR_MICROSECONDS)
    return small / sum(times) if small else 0.0


class StepProfile:
    """A profile of the operators in the third step."""

    def __init__(self) -> None:
        self.small_operators = 0.0  # share of time spent in them; 0 if unknown
        self._profile: Any = None

    @property
    def runs(self) -> bool:
        """Whether profiling runs."""
        return self._profile is not None

    def turn(self, steps: int) -> None:
        """Starts or ends profiling at a draw or call, depending on the steps so far."""
        if self.runs:
            self.end()
        elif steps == 2:
            import torch

            with contextlib.suppress(Exception):
                self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                self._profile.__enter__()

    def end(self) -> None:
        """Ends profiling, if it runs, and evaluates it."""
        if not self.runs:
            return
        profile, self._profile = self._profile, None
        with contextlib.suppress(Exception):
            profile.__exit__(None, None, None)
            self.small_operators = small_fraction([event.self_cpu_time_total for event in profile.events()])


def rows_of(arguments: Any) -> int | None:
    """The number of samples in a model's arguments; None if unknown. A vector counts as one sample."""
    tensor = next((one for one in tensors_in(arguments) if one.dim()), None)
    if tensor is None:
        return None
    return 1 if tensor.dim() == 1 and tensor.is_floating_point() else int(tensor.shape[0])


def holders_of(optimizers: Iterable[Optimizer]) -> list[nn.Module]:
    """The outermost models that hold optimizers' weights, called or not: calls in compiled code are invisible."""
    stepped = {id(weight) for weight in weights_of(*optimizers)}
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    return outermost(one for one in modules if any(id(weight) in stepped for weight in one.parameters()))


def outermost(models: Iterable[nn.Module]) -> list[nn.Module]:
    """The models that are not part of another one."""
    models = list(models)
    within = {id(part) for one in models for part in one.modules() if part is not one}
    return [one for one in models if id(one) not in within]


def autocast_dtype(device: str) -> str | None:
    """The type that a device computes in under the script's own autocast; None without one."""
    if not torch.is_autocast_enabled(device):
        return None
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def is_compiled(model: nn.Module) -> bool:
    """Whether the script has compiled a model, or a part of it."""
    return any(
        getattr(part, "_compiled_call_impl", None) is not None or type(part).__name__ == "OptimizedModule"
        for part in model.modules()
    )


def sums_of(models: Iterable[nn.Module]) -> list[float]:
    """The sum of each weight, which shows whether it has changed."""
    sums = []
    with torch.no_grad():
        for model in models:
            for weight in model.parameters():
                with contextlib.suppress(RuntimeError):  # of a lazy module that has not been called yet
                    sums.append(float(weight.detach().sum()))
    return sums


def trained_beside() -> int:
    """Number of sibling processes, if this one was started by `multiprocessing`."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is None:
        return 0
    others = 0
    with contextlib.suppress(OSError):
        others += sum(child != os.getpid() and not _is_tracker(child) for child in children_of(parent.pid or 0))
    return others


def _is_tracker(process: int) -> bool:
    """Whether a process is Python's resource tracker."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as command_line:
        return b"resource_tracker" in command_line.read()
    return True


class Traffic(NamedTuple):
    """Least bytes that are read and written for any batch, without activations, which are unknown."""

    pass_bytes: int  # of a micro-batch: each weight is read forward and backward, each gradient is written
    update_bytes: int  # of an optimizer step: gradients are read, weights and state are read and written


def traffic_of(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Traffic:
    """The traffic of a training whose optimizers have stepped. Rows that a pass reads of embeddings do not count.

    Args:
        models: The trained models.
        optimizers: Their optimizers. If one keeps state for other weights but none for a weight, that weight had no
            gradient, and does not count.
    """
    weights: dict[torch.Tensor, bool] = {}  # whether all of it is read
    for model in models:
        for module in model.modules():
            for weight in module.parameters(recurse=False):
                weights[weight] = weights.get(weight, False) or not _looks_up(module)
    trained: set[torch.Tensor] = set()
    update_bytes = 0
    for optimizer in optimizers:
        for weight in weights_of(optimizer):
            if weight in trained or not weight.requires_grad or (optimizer.state and weight not in optimizer.state):
                continue
            trained.add(weight)
            kept = [value for value in optimizer.state.get(weight, {}).values() if isinstance(value, torch.Tensor)]
            update_bytes += 3 * weight.nbytes + sum(2 * value.nbytes for value in kept if value.numel() > 1)
    read = {weight for weight, whole in weights.items() if whole and (weight in trained or not weight.requires_grad)}
    backward = sum(weight.nbytes * (1 + (weight in read)) for weight in trained)
    return Traffic(sum(weight.nbytes for weight in read) + backward, update_bytes)


def _looks_up(module: nn.Module) -> bool:
    """Whether a module only reads the rows of its weights that a batch selects."""
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag))
