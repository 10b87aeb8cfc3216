"""Sandbox functions that must run in the script's own process; the recorder calls them.

They enter a separate layer for each job, announce the first step, and watch from which addresses data are read.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import socket
import sys
from collections.abc import Callable
from time import monotonic, sleep  # by name: the script may replace what `time` holds
from types import FrameType
from typing import Any

from . import redirect, view
from .calls import STEPPED

KEPT = "kept"
"""Marker file in the shared folder: the parent has kept the files that start-up made."""
KEEPING_SECONDS = 60.0
"""Time limit for the parent to link these files; 100,000 files take 2 s on a local disk."""
_READS_SAMPLES = "torch.utils.data._utils.fetch"
"""The module in which a loader or its worker reads samples from the data set."""
_HERE = ("127.", "::1", "localhost", "0.0.0.0")  # noqa: S104 - nothing is bound


def enter(orders: dict[str, Any]) -> None:
    """Prepares this interpreter for its sandbox, before the script's first line."""
    if orders["mirror"] is not None:
        redirect.begin(**orders["mirror"])
    elif orders["row"] == "overlay":
        view.override_modes(allowed=False)
        _rename_by_copying()


def enter_layer(orders: dict[str, Any] | None) -> None:
    """Gives this process its own layer. It was forked for a job, and must have one thread.

    Raises:
        OSError: The kernel refuses.
    """
    if orders is None:
        return
    if "mirror" in orders:
        redirect.move_to(orders["mirror"])
        return
    view.enter(view.Plan.of(orders["plan"]), orders["layer"], is_inside=True)


def _rename_by_copying() -> None:
    """Makes renaming copy and remove a folder of the lower layer, which a user namespace cannot rename."""
    original = os.rename  # the same as `os.replace` on Linux

    @functools.wraps(original)
    def rename(source: Any, target: Any, **kwargs: Any) -> None:
        try:
            original(source, target, **kwargs)
        except OSError as error:
            if error.errno != errno.EXDEV or kwargs or not os.path.isdir(source):
                raise
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(target)  # fails like a rename if it is not empty
            shutil.copytree(source, target, symlinks=True)
            shutil.rmtree(source)

    os.rename = os.replace = rename  # type: ignore[assignment]


def announce_step(*, any_network: bool) -> None:
    """Announces this process's first optimizer step; if no parent receives it, this process refuses connections."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect(STEPPED)
    except ConnectionRefusedError:  # the parent has answered
        return
    except OSError:  # no network at all
        pass
    if not any_network:
        _on_connection(_refuse)


def begin_training(shared: str, *, any_network: bool) -> None:
    """In a look: waits until the parent has kept the files that start-up made, then announces the first step.

    Args:
        shared: Folder in which the parent leaves the file `KEPT`.
        any_network: See `announce_step`.
    """
    kept, deadline = os.path.join(shared, KEPT), monotonic() + KEEPING_SECONDS
    while not os.path.exists(kept) and monotonic() < deadline:
        sleep(0.002)
    announce_step(any_network=any_network)


def watch_reading(report: Callable[[str], None]) -> None:
    """Calls a function with each address that this process connects to while it reads samples."""

    def note(host: str) -> None:
        if is_reading():
            report(host)

    _on_connection(note)


def is_reading() -> bool:
    """Whether any thread of this process reads a data set, or the process is a loader's worker."""
    import torch

    if torch.utils.data.get_worker_info() is not None:
        return True
    return any(map(_is_in_fetch, sys._current_frames().values()))


def _is_in_fetch(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == _READS_SAMPLES:
            return True
        frame = frame.f_back
    return False


def _refuse(host: str) -> None:
    if not is_reading():
        raise ConnectionRefusedError(
            errno.ECONNREFUSED, f"autotune: bursts connect to nothing but their data, got {host}; --network allows all"
        )


def _on_connection(then: Callable[[str], None]) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            host = str(arguments[1][0])
            if not host.startswith(_HERE):
                then(host)

    sys.addaudithook(hook)
