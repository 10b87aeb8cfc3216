"""Finds the fastest correct way to train a PyTorch model on the machine at hand, and proves it.

``autotune --model train:build --budget 10m`` measures, as does ``autotune.tune("train:build", budget="10m")``;
``autotune.load(path)`` trains with the result.
Importing this package does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.api import tune
    from autotune.errors import AutotuneError
    from autotune.knobs import TrainConfig
    from autotune.results.result import Result, read_result
    from autotune.scripts.launching import apply
    from autotune.training.live import live
    from autotune.training.load_result import load
    from autotune.training.tuned import Tuned
    from autotune.workload.workload import Workload

__version__ = "0.1.0"
__all__ = [
    "AutotuneError", "Result", "TrainConfig", "Tuned", "Workload", "__version__", "apply", "live", "load",
    "read_result", "tune",
]  # fmt: skip

_HOMES = {
    "AutotuneError": "errors",
    "Result": "results.result",
    "TrainConfig": "knobs.config",
    "Tuned": "training.tuned",
    "Workload": "workload.workload",
    "apply": "scripts.launching",
    "live": "training.live",
    "load": "training.load_result",
    "read_result": "results.result",
    "tune": "api",
}


def __dir__() -> list[str]:
    """The public names, for editors and notebooks."""
    return __all__


def __getattr__(name: str) -> object:
    """Imports a name at its first use, so that importing the package costs nothing."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"autotune.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
