"""Saves in a burst what a script saves to read it again, and leaves out checkpoints, which are nobody's.

What is saved before the first step, or while a data set is read, is data that was prepared. `torch.save` and
safetensors write below Python, so the journal must be told.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from . import hooks
from .failing import NotKeptError, NotSavedError
from .importing import after_import

if TYPE_CHECKING:
    from .journal import Journal

_READS_SAMPLES = "torch.utils.data._utils.fetch"
"""The module in which a loader, or a worker of it, asks the data set for samples."""
_has_stepped = [False]


def leave_out_checkpoints(journal: Journal) -> None:
    """From the first step on, what is saved to files is only told; torch is there."""
    journal.leave_caches_alone()
    hooks.on_step(lambda _: None, _stepped)
    _wrap(sys.modules["torch"], "save", "f", journal)
    _wrap_load(sys.modules["torch"], "load", "f")
    sys.modules["torch"].serialization.load = sys.modules["torch"].load  # where it is pickled by its name
    # Imported by name by frameworks: before they are.
    after_import("safetensors.torch", lambda: _wrap(sys.modules["safetensors.torch"], "save_file", "filename", journal))
    after_import("safetensors.torch", lambda: _wrap_load(sys.modules["safetensors.torch"], "load_file", "filename"))


def _stepped(_: Any) -> None:
    _has_stepped[0] = True


def _wrap(module: Any, name: str, path_name: str, journal: Journal) -> None:
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        path = args[1] if len(args) > 1 else kwargs.get(path_name)
        if not isinstance(path, (str, bytes, os.PathLike)):
            return original(*args, **kwargs)
        if (_has_stepped[0] and not _is_read_from()) or not journal.can_copy(path):
            with contextlib.suppress(OSError):
                journal.saved(path)
                if not os.path.exists(path):  # scripts rename, copy or measure what they have saved
                    open(path, "ab").close()
            return None
        try:
            journal.written(path)
        except NotKeptError:
            raise
        except OSError:  # what cannot be told of a new file harms nobody
            pass
        return original(*args, **kwargs)

    setattr(module, name, save)


def _wrap_load(module: Any, name: str, path_name: str) -> None:
    """Whoever loads the best of its checkpoints has trained all that it trains."""
    original: Callable[..., Any] = getattr(module, name)

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        file = args[0] if args else kwargs.get(path_name)
        path = getattr(file, "name", file)
        if _has_stepped[0] and isinstance(path, (str, bytes, os.PathLike)) and _is_empty(path):
            raise NotSavedError(f"{os.fsdecode(path)} is empty: bursts leave out checkpoints")
        return original(*args, **kwargs)

    setattr(module, name, load)


def _is_empty(path: Any) -> bool:
    with contextlib.suppress(OSError):
        return not os.path.getsize(path)
    return False


def _is_read_from() -> bool:
    """Whether a data set is being read: it keeps a sample that it has prepared."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _READS_SAMPLES:
            return True
        frame = frame.f_back
    return False
