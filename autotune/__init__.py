"""Finds the fastest correct way to train a PyTorch model on the machine at hand, and proves it.

``autotune --model train:build --budget 10m`` measures; ``autotune.load(path)`` uses what was found.
Importing this package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import TrainConfig
from autotune.errors import AutotuneError
from autotune.workload import Workload

if TYPE_CHECKING:
    from autotune.runtime import Tuned, load

__version__ = "0.1.0"
__all__ = ["AutotuneError", "TrainConfig", "Tuned", "Workload", "__version__", "load"]


def __getattr__(name: str) -> object:
    """Imports what needs torch only when it is asked for."""
    if name in {"Tuned", "load"}:
        from autotune import runtime

        return getattr(runtime, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
