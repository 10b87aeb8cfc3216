"""Names what is trained, so that a result is known to be of another model, data set or optimizer."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from autotune.knobs import ModelFacts
from autotune.recorder.naming import length_of, shapes_hash
from autotune.workload.batches import tensors_in

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from autotune.workload.workload import Workload


def fingerprint(workload: Workload, optimizer: Optimizer, sample: Any) -> str:
    """Names what is trained, alike on every machine: model, sample, dataset size, optimizer, effective batch."""
    parts = [
        type(workload.model).__qualname__,
        *(f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in workload.model.named_parameters()),
        *(f"{tensor.dim()}d:{tensor.dtype}" for tensor in tensors_in(sample)),
        str(length_of(workload.dataset)),
        type(optimizer).__qualname__,
        str(workload.baseline_config.effective_batch),
    ]
    return _hash(parts)


def model_facts(model: torch.nn.Module, optimizer: Optimizer | None) -> ModelFacts:
    """What can be told of a workload where only the model and its optimizer are at hand.

    The weights are told by their shapes alone, so that a model inside another (a LightningModule, say) is the same.
    """
    weights = list(model.parameters())
    return ModelFacts(
        name=type(model).__name__,
        tensors=len(weights),
        weights=sum(weight.numel() for weight in weights),
        shapes=shapes_hash(model),
        optimizer=type(optimizer).__name__ if optimizer is not None else None,
    )


def model_differences(there: ModelFacts, here: ModelFacts) -> list[str]:
    """How a model or its optimizer differs from the one that was measured, each in words; empty when alike."""
    found = []
    if there.shapes != here.shapes:
        found.append(f"the model is {there.words} there, {here.words} here")
    if None not in {there.optimizer, here.optimizer} and there.optimizer != here.optimizer:
        found.append(f"the optimizer is {there.optimizer} there, {here.optimizer} here")
    return found


def _hash(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
