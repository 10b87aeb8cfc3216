"""Workloads from other frameworks: a LightningModule with its data, or a ``transformers.Trainer``.

This package imports no framework: `build()` can only return a framework's object if it has imported the framework.
"""

from __future__ import annotations

import sys
from typing import Any

from autotune.errors import WorkloadError
from autotune.workload.user_errors import described, wrap_user_error


def from_framework(built: Any, target: str) -> Any:
    """Makes a Workload if `build()` returned a framework's object; else returns the object unchanged.

    Raises:
        WorkloadError: Bursts cannot train the framework's object, or its own code raised.
    """
    try:
        return _adapted(built, target)
    except WorkloadError:
        raise
    except Exception as error:
        raise wrap_user_error(error, f"{target}: making a Workload from its return value raised") from error


def _adapted(built: Any, target: str) -> Any:
    first, *rest = built if isinstance(built, tuple) and built else (built,)
    for name in ("lightning.pytorch", "pytorch_lightning"):
        package = sys.modules.get(name)
        if package is not None and isinstance(first, package.LightningModule):
            return _from_lightning(package, first, rest, target) or built
    package = sys.modules.get("transformers.trainer")
    if package is not None and isinstance(built, package.Trainer):
        from autotune.workload.adapters.transformers import from_trainer

        return from_trainer(built, target)
    return built


def _from_lightning(package: Any, module: Any, rest: list[Any], target: str) -> Any:
    """A Workload from ``module``, ``(module, data)`` or ``(module, data, trainer)``; None for a plain triple."""
    from torch.utils.data import DataLoader

    from autotune.workload.adapters.lightning import from_module

    data, trainer = (*rest, None, None)[:2]
    if len(rest) == 2 and not isinstance(trainer, package.Trainer):
        return None  # (model, dataset, loss): the module is used like any other
    if len(rest) > 2 or not isinstance(data, (package.LightningDataModule, DataLoader, type(None))):
        got = described(data) if len(rest) < 3 else f"{len(rest)} values"
        raise WorkloadError(
            f"{target}: expected a LightningDataModule or a train DataLoader beside the LightningModule, got {got}; "
            "return (module, datamodule), or (module, datamodule, trainer) with your current trainer"
        )
    return from_module(package, module, data, trainer, target)
