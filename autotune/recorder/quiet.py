"""Keeps libraries of the script's quiet in bursts: trackers send nothing, and tqdm starts no thread.

Each is changed as soon as it has been imported, before the script can call it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from .importing import after_import


def keep_quiet() -> None:
    """From here on whichever of these libraries is imported is quiet."""
    after_import("tqdm", _stop_monitor)
    after_import("wandb", _disable_wandb)
    after_import("mlflow", _redirect_mlflow)


def _stop_monitor() -> None:
    """A bar starts a thread that watches all bars; a process that runs one cannot be forked."""
    sys.modules["tqdm"].tqdm.monitor_interval = 0  # also of tqdm.auto, tqdm.asyncio and whatever else inherits it


def _disable_wandb() -> None:
    """``WANDB_MODE`` is overruled by a script that says the mode itself."""
    wandb: Any = sys.modules["wandb"]
    original = wandb.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "mode": "disabled"})

    wandb.init = init


def _redirect_mlflow() -> None:
    """MLflow cannot be disabled: it logs into the run's temporary folder, whichever server the script names."""
    from pathlib import Path
    from tempfile import gettempdir

    mlflow: Any = sys.modules["mlflow"]
    place = Path(gettempdir(), "mlflow").as_uri()
    own_set, own_init = mlflow.set_tracking_uri, mlflow.tracking.MlflowClient.__init__
    own_set(place)

    @functools.wraps(own_set)
    def set_tracking_uri(*_: Any, **__: Any) -> None:
        own_set(place)

    @functools.wraps(own_init)
    def construct(self: Any, *_: Any, **__: Any) -> None:
        own_init(self, place, place)  # the second one: of the models' registry

    mlflow.set_tracking_uri = mlflow.tracking.set_tracking_uri = set_tracking_uri
    mlflow.tracking.MlflowClient.__init__ = construct
