"""Leaves out checkpoints: writing them would be timed, and bursts do not need them.

Files that are saved before the first step, or while a data set is read, are prepared data, and are saved.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from ..sandbox import redirect
from ..sandbox.inside import is_reading
from ..timing.failing import NotSavedError
from . import hooks
from .importing import after_import

_has_stepped = [False]


def leave_out_checkpoints() -> None:
    """Makes saving leave an empty file from the first step on; torch must be imported."""
    hooks.on_step(after=_stepped)
    _wrap(sys.modules["torch"], "save", "f")
    _wrap_load(sys.modules["torch"], "load", "f")
    sys.modules["torch"].serialization.load = sys.modules["torch"].load  # pickle finds it there by name
    # Frameworks import these by name, so they are replaced first.
    after_import("safetensors.torch", lambda: _wrap(sys.modules["safetensors.torch"], "save_file", "filename"))
    after_import("safetensors.torch", lambda: _wrap_load(sys.modules["safetensors.torch"], "load_file", "filename"))


def _stepped(_: Any) -> None:
    _has_stepped[0] = True


def _wrap(module: Any, name: str, path_name: str) -> None:
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        path = args[1] if len(args) > 1 else kwargs.get(path_name)
        if not isinstance(path, (str, bytes, os.PathLike)):
            return original(*args, **kwargs)
        if _has_stepped[0] and not is_reading():
            with contextlib.suppress(OSError):
                if not os.path.exists(path):  # scripts rename, copy or measure saved files
                    open(path, "ab").close()
            return None
        return original(*_with_path(args, kwargs, 1, path_name, redirect.for_writing(path)), **kwargs)

    setattr(module, name, save)


def _wrap_load(module: Any, name: str, path_name: str) -> None:
    """Raises for an empty checkpoint: a script that loads its best checkpoint has finished training."""
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        file = args[0] if args else kwargs.get(path_name)
        path = getattr(file, "name", file)
        if _has_stepped[0] and isinstance(path, (str, bytes, os.PathLike)) and _is_empty(path):
            raise NotSavedError(f"{os.fsdecode(path)} is empty: bursts leave out checkpoints")
        return original(*_with_path(args, kwargs, 0, path_name, redirect.for_reading(file)), **kwargs)

    setattr(module, name, load)


def _with_path(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str, path: Any) -> tuple[Any, ...]:
    """The arguments with another path, which may be positional or named."""
    if name in kwargs:
        kwargs[name] = path
        return args
    return (*args[:place], path, *args[place + 1 :])


def _is_empty(path: Any) -> bool:
    with contextlib.suppress(OSError):
        return not os.path.getsize(path)
    return False
