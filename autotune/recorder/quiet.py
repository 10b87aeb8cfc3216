"""Keeps libraries of the script's quiet in bursts: trackers and hubs are sent nothing, and no threads are started.

Each is changed as soon as it has been imported, before the script can call it.
"""

from __future__ import annotations

import functools
import sys
from concurrent.futures import Future
from typing import Any

from .importing import after_import

_HUB_WRITES = (
    "create_commit", "create_repo", "delete_repo", "update_repo_settings", "move_repo", "upload_file", "upload_folder",
    "upload_large_folder", "delete_file", "delete_files", "delete_folder", "create_branch", "delete_branch",
    "create_tag", "delete_tag", "super_squash_history",
)  # fmt: skip
"""Methods of `huggingface_hub.HfApi` that change a repository."""

_TRACKIO_WRITES = (
    "log", "log_system", "log_gpu", "log_cpu", "log_artifact", "alert", "save", "freeze", "sync", "finish",
)  # fmt: skip


def keep_quiet() -> None:
    """From here on whichever of these libraries is imported is quiet."""
    after_import("tqdm", _stop_monitor)
    after_import("rich.live", _stop_drawing)
    after_import("wandb", lambda: _disable("wandb"))
    after_import("swanlab", lambda: _disable("swanlab"))
    after_import("trackio", _silence_trackio)
    after_import("aim.sdk.run", _forget_aim)
    after_import("mlflow", _redirect_mlflow)
    after_import("tensorboard.summary.writer.event_file_writer", _discard_events)
    after_import("tensorboardX.event_file_writer", _discard_events_of_x)
    after_import("huggingface_hub.hf_api", _keep_from_hub)


def _stop_monitor() -> None:
    """A bar starts a thread that watches all bars; a process that runs one cannot be forked."""
    sys.modules["tqdm"].tqdm.monitor_interval = 0  # also of tqdm.auto, tqdm.asyncio and whatever else inherits it


def _stop_drawing() -> None:
    """A bar of Rich, which is Lightning's, is drawn by a thread; it draws itself whenever it is told to, too."""
    sys.modules["rich.live"]._RefreshThread = _NoThread  # type: ignore[attr-defined]


def _disable(name: str) -> None:
    """A mode in the environment (``WANDB_MODE``) is overruled by a script that says the mode itself."""
    tracker: Any = sys.modules[name]
    original = tracker.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "mode": "disabled"})

    tracker.init = init
    if hasattr(tracker, "login"):  # it starts a process and a thread, disabled or not
        tracker.login = lambda *_, **__: True


class _NoRun:
    """Stands in for a run of a tracker that has no mode in which nothing is sent: whatever it is told, it forgets."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.config: dict[str, Any] = {}

    def __setitem__(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _silence_trackio() -> None:
    trackio: Any = sys.modules["trackio"]
    for name in _TRACKIO_WRITES:
        if hasattr(trackio, name):
            setattr(trackio, name, lambda *_, **__: None)
    trackio.init = lambda *_, **__: _NoRun()


def _forget_aim() -> None:
    """Its runs write into the working directory below Python, or are sent to a server; all its callbacks make one."""
    sys.modules["aim.sdk.run"].Run = _NoRun  # type: ignore[attr-defined]


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


class _NoThread:
    """Stands in for the thread of a library, which writes or draws: a process that runs one cannot be forked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _nothing(self, *_: Any, **__: Any) -> None:
        pass

    start = stop = write = flush = close = _nothing


def _discard_events() -> None:
    sys.modules["tensorboard.summary.writer.event_file_writer"]._AsyncWriter = _NoThread  # type: ignore[attr-defined]


def _discard_events_of_x() -> None:
    """Its queue starts a thread as well, with the first event."""
    writer: Any = sys.modules["tensorboardX.event_file_writer"]
    writer._EventLoggerThread = _NoThread
    writer.EventFileWriter.add_event = lambda *_: None


def _keep_from_hub() -> None:
    """A checkpoint of a burst is no model, and would take the place of one."""
    hub: Any = sys.modules["huggingface_hub.hf_api"]
    for name in _HUB_WRITES:
        if hasattr(hub.HfApi, name):
            setattr(hub.HfApi, name, _unsent(name, hub))
            if hasattr(hub, name):  # bound to the module's own client
                setattr(hub, name, getattr(hub.api, name))


def _unsent(name: str, hub: Any) -> Any:
    """What stands for a method that would write to the hub."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("run_as_future"):
            done: Future[None] = Future()
            done.set_result(None)
            return done
        if name != "create_repo":
            return None
        repo_id = args[0] if args else kwargs["repo_id"]
        whole = repo_id if "/" in repo_id else f"user/{repo_id}"  # the hub would put the user's name there
        return hub.RepoUrl(f"{self.endpoint}/{whole}", endpoint=self.endpoint)

    return method
