"""Identifies a workload, so that a result of another model, data set or optimizer is recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.knobs import ModelFacts
from autotune.torch_settings.naming import fingerprint_of, length_of, tensors_in

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from autotune.workload.workload import Workload


def fingerprint(workload: Workload, optimizer: Optimizer, sample: Any) -> str:
    """Identifies a workload, alike on every machine: model, sample, dataset size, optimizer, effective batch."""
    parts = [
        type(workload.model).__qualname__,
        *(f"{name}:{tuple(p.shape)}:{p.dtype}" for name, p in workload.model.named_parameters()),
        *(f"{tensor.dim()}d:{tensor.dtype}" for tensor in tensors_in(sample)),
        str(length_of(workload.dataset)),
        type(optimizer).__qualname__,
        str(workload.baseline_config.effective_batch),
    ]
    return fingerprint_of(parts)


def model_differences(there: ModelFacts, here: ModelFacts) -> list[str]:
    """Differences of a model and its optimizer from the measured ones, in words; empty when there are none."""
    differences = []
    if there.shapes != here.shapes:
        differences.append(f"the model is {there.words} there, {here.words} here")
    if None not in {there.optimizer, here.optimizer} and there.optimizer != here.optimizer:
        differences.append(f"the optimizer is {there.optimizer} there, {here.optimizer} here")
    return differences
