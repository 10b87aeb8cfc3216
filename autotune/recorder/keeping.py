"""Keeps what is the user's as it was: files that a script writes in a burst, checkpoints, and trackers.

What Python opens for writing, renames or removes is told beforehand, and copied if it is there; the parent puts it
back in the end, and removes what training has made. What a script makes before its loop begins, such as a data set that
it downloads, is kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

JOURNAL = "written.jsonl"
MOST_COPIED_BYTES = 2**30
"""Of a file: a copy of more would take longer than the burst."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_state = threading.local()
_in_loop = [False]


def keep(folder: str) -> None:
    """From here on what is written is told in a folder, and ``torch.save`` to a file does nothing."""
    places = (folder, "/dev", "/proc", "/sys", tempfile.gettempdir(), os.path.expanduser("~/.cache"), sys.prefix)
    apart = tuple(os.path.realpath(place) + os.sep for place in places)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _PATHS or getattr(_state, "busy", False):
            return
        _state.busy = True
        try:
            for path in _PATHS[event](arguments):
                _note(folder, path, apart)
        except Exception:  # noqa: BLE001, S110 - whatever a script does with its files must go on
            pass
        finally:
            _state.busy = False

    sys.addaudithook(hook)
    _silence_saving(folder)


def in_loop() -> None:
    """From here on what is made is training's."""
    _in_loop[0] = True


def _opened(arguments: tuple[Any, ...]) -> list[Any]:
    path, mode, flags = (*arguments, None, None, None)[:3]
    writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITING)
    return [path] if writes else []


_PATHS: dict[str, Callable[[tuple[Any, ...]], list[Any]]] = {
    "open": _opened,
    "os.remove": lambda arguments: [arguments[0]],
    "os.rename": lambda arguments: list(arguments[:2]),
    "os.truncate": lambda arguments: [arguments[0]],
    "os.mkdir": lambda arguments: [arguments[0]],
}


def _note(folder: str, path: Any, apart: tuple[str, ...]) -> None:
    """Tells one path, before it is written to, the first time in any process; copies it if it is there."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    place = os.path.realpath(os.fsdecode(path))
    if place.startswith(apart) or "__pycache__" in place:
        return
    mark = os.path.join(folder, hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:24])
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    told: dict[str, Any] = {"path": place, "in_loop": _in_loop[0], "made": not os.path.lexists(place)}
    if not told["made"] and os.path.isfile(place):
        if os.path.getsize(place) <= MOST_COPIED_BYTES:
            shutil.copy2(place, mark)
            told["copy"] = mark
        else:
            told["too_large"] = True
    elif not told["made"]:
        return  # a folder, a device
    with open(os.path.join(folder, JOURNAL), "a", encoding="utf-8") as journal:
        journal.write(json.dumps(told) + "\n")


def _silence_saving(folder: str) -> None:
    """Checkpoints of a burst are nobody's: ``torch.save`` to a file only tells that it was called."""
    import torch

    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, (str, bytes, os.PathLike)):
            return original(obj, f, *args, **kwargs)
        with contextlib.suppress(OSError), open(os.path.join(folder, JOURNAL), "a", encoding="utf-8") as journal:
            journal.write(json.dumps({"path": os.path.realpath(os.fsdecode(f)), "saved": True}) + "\n")
        return None

    torch.save = save
