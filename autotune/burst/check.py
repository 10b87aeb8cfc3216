"""One look at a workload before any burst: builds it, collates a batch, takes a step, and says what is wrong.

Every mistake ends in one sentence with the remedy, within seconds, before the search starts.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset, default_collate

from autotune.burst.loop import count_samples, make_loader
from autotune.errors import WorkloadError
from autotune.facts import WorkloadFacts
from autotune.runtime import Tuned
from autotune.workload import Workload, user_trace, wrap_user_error

_OPTIMIZER_IMPLS = ("foreach", "fused")


def check_workload(workload: Workload, target: str, device: str) -> WorkloadFacts:
    """What can be known about a workload from one batch and one step.

    Raises:
        WorkloadError: When its dataset, collation, loss or optimizer cannot be trained with.
    """
    config = workload.baseline_config
    samples, sample_seconds = _fetch_samples(workload, config.batch_size, target)
    batch = _collate(workload, samples, target)
    tuned = Tuned(config, device=device)
    optimizer = _make_optimizer(workload, target)
    # Eager: what is checked is the user's code, and compiling it takes long.
    eager = Tuned(config.replace(compile_mode=None), device=tuned.device)
    eager.prepare(workload.model, optimizer)
    operators = _step(workload, eager, optimizer, batch, target)
    return WorkloadFacts(
        target=target,
        name=workload.name or target,
        fingerprint=fingerprint(workload, optimizer, samples[0]),
        samples=_length(workload.dataset),
        baseline=config,
        parameters=sum(parameter.numel() for parameter in workload.model.parameters()),
        batch_bytes=_tensor_bytes(batch),
        sample_seconds=sample_seconds,
        has_images=any(tensor.dim() == 4 for tensor in (*workload.model.parameters(), *_tensors(batch))),
        has_attention="aten::scaled_dot_product_attention" in operators,
        fixed_shapes=_fixed_shapes(workload, samples),
        optimizer_impls=tuple(name for name in _OPTIMIZER_IMPLS if name in optimizer.defaults),
        fork_safe=True,
    )


def fingerprint(workload: Workload, optimizer: torch.optim.Optimizer, sample: Any) -> str:
    """Names what is trained, alike on every machine: model, sample, dataset size, optimizer, effective batch."""
    parts = [
        type(workload.model).__qualname__,
        *(f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in workload.model.named_parameters()),
        *(f"{tensor.dim()}d:{tensor.dtype}" for tensor in _tensors(sample)),
        str(_length(workload.dataset)),
        type(optimizer).__qualname__,
        str(workload.baseline_config.effective_batch),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def _fetch_samples(workload: Workload, count: int, target: str) -> tuple[list[Any], float]:
    """Samples of one batch as the loader would draw them, and the seconds that one took."""
    dataset = workload.dataset
    started = time.perf_counter()
    try:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            samples = list(itertools.islice(iter(dataset), count))
        else:
            indices = workload.sampler if workload.sampler is not None else range(_length(dataset) or count)
            samples = [dataset[index] for index in itertools.islice(iter(indices), count)]
    except Exception as error:
        raise wrap_user_error(error, f"{target}: reading a sample of the dataset raised") from error
    if not samples:
        raise WorkloadError(f"{target}: the dataset yields no sample; check its path or its filter")
    return samples, (time.perf_counter() - started) / len(samples)


def _collate(workload: Workload, samples: list[Any], target: str) -> Any:
    collate = workload.collate_fn or default_collate
    try:
        return collate(samples)
    except Exception as error:
        if workload.collate_fn is not None:
            raise wrap_user_error(error, f"{target}: collate_fn raised") from error
        summary = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        raise WorkloadError(
            f"{target}: {len(samples)} samples of type {type(samples[0]).__name__} cannot be collated into a batch "
            f"({summary}); return tensors of one shape, or give a collate_fn"
        ) from error


def _make_optimizer(workload: Workload, target: str) -> torch.optim.Optimizer:
    try:
        optimizer = workload.make_optimizer()
    except Exception as error:
        raise wrap_user_error(error, f"{target}: making the optimizer raised") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(
            f"{target}: optimizer must return a torch.optim.Optimizer, but a {type(optimizer).__name__} came; "
            "write optimizer=lambda params: torch.optim.AdamW(params)"
        )
    return optimizer


def _step(
    workload: Workload, tuned: Tuned, optimizer: torch.optim.Optimizer, batch: Any, target: str
) -> frozenset[str]:
    """One training step; returns the names of the operators that ran in the forward pass."""
    moved = tuned.to_device(batch)
    workload.model.train()
    try:
        with torch.autograd.profiler.profile() as profile, tuned.autocast():
            loss = workload.loss(workload.model, moved)
    except Exception as error:
        raise wrap_user_error(error, f"{target}: loss(model, batch) raised") from error
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(f"{target}: loss must return a scalar tensor, but a {type(loss).__name__} came; return the tensor, not .item()")
    if loss.numel() != 1:
        raise WorkloadError(f"{target}: loss must return a scalar, but a tensor of shape {tuple(loss.shape)} came; take its .mean()")
    if not loss.requires_grad:
        raise WorkloadError(
            f"{target}: the loss has no gradient; compute it from the model's output without .detach(), .item() or no_grad"
        )
    if not torch.isfinite(loss):
        raise WorkloadError(f"{target}: the loss of the first batch is {loss.item()}; check the data and the model's initial weights")
    try:
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    except Exception as error:
        raise wrap_user_error(error, f"{target}: the backward pass or the optimizer step raised") from error
    return frozenset(event.name for event in profile.function_events or ())


def _fixed_shapes(workload: Workload, samples: list[Any]) -> bool:
    """Whether all samples that were seen have equal shapes; with a collate_fn, whether halves of them collate so."""
    if workload.collate_fn is None:
        return True  # torch's own collation stacks: it would have failed
    half = len(samples) // 2
    if half == 0:
        return False
    shapes = [
        [tuple(t.shape) for t in _tensors(workload.collate_fn(part))] for part in (samples[:half], samples[half : 2 * half])
    ]
    return shapes[0] == shapes[1]


def _tensors(batch: Any) -> list[torch.Tensor]:
    """All tensors in a batch, in order."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    values = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def _tensor_bytes(batch: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(batch))
