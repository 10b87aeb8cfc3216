"""What the recorder does in a sandbox: a layer of its own for each job, a word of the first step, and where data come from.

The sandbox itself is the kernel's (`autotune.sandbox`); here is what only the script's own process can do.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from . import redirect

STEPPED = ("240.0.0.1", 1)
"""As in `autotune.sandbox.calls`, which cannot be imported here."""
_READS_SAMPLES = "torch.utils.data._utils.fetch"
"""The module in which a loader, or a worker of it, asks the data set for samples."""
_HERE = ("127.", "::1", "localhost", "0.0.0.0")  # noqa: S104 - nothing is bound


def enter(orders: dict[str, Any]) -> None:
    """Prepares this interpreter for the sandbox that it is in; before the script's first line."""
    if orders["mirror"] is not None:
        redirect.begin(**orders["mirror"])
    elif orders["row"] == "overlay":
        _rename_by_copying()


def enter_layer(orders: dict[str, Any] | None) -> None:
    """Gives this process, which was forked for a job and has one thread, a layer of its own.

    Raises:
        OSError: The kernel refuses.
    """
    if orders is None:
        return
    if "mirror" in orders:
        redirect.move_to(orders["mirror"])
        return
    view = _view()
    view.enter(view.Plan.of(orders["plan"]), orders["layer"], is_inside=True)


def _view() -> Any:
    """The module of the sandbox's views, loaded by its path."""
    name = "_autotune_view"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "sandbox" / "view.py")
        assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - the file is a part of autotune
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def _rename_by_copying() -> None:
    """A folder of the lower layer cannot be renamed in a user namespace: it is copied and removed."""
    for name in ("rename", "replace"):
        _wrap_renaming(name)


def _wrap_renaming(name: str) -> None:
    original = getattr(os, name)

    @functools.wraps(original)
    def rename(source: Any, target: Any, **kwargs: Any) -> None:
        try:
            original(source, target, **kwargs)
        except OSError as error:
            if error.errno != errno.EXDEV or kwargs or not os.path.isdir(source):
                raise
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(target)  # fails as a rename does where it is not empty
            shutil.copytree(source, target, symlinks=True)
            shutil.rmtree(source)

    setattr(os, name, rename)


def announce_step(*, any_network: bool) -> None:
    """Says that this process has taken its first optimizer step; where no parent answers, connections are refused here."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect(STEPPED)
    except ConnectionRefusedError:  # the parent has answered
        return
    except OSError:  # no network at all
        pass
    if not any_network:
        _on_connection(_refuse)


def watch_reading(tell: Callable[[str], None]) -> None:
    """Calls a function with each address that this process connects to while it reads samples."""

    def note(host: str) -> None:
        if is_reading():
            tell(host)

    _on_connection(note)


def is_reading() -> bool:
    """Whether a data set is being read, in any thread of this process or because it is a worker."""
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
