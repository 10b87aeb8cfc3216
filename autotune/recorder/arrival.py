"""The recorder's entry into an interpreter: it waits until torch is imported, then takes up its role."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from ..sandbox.inside import enter
from .importing import after_import

ORDERS = "AUTOTUNE_RECORDER"
"""Environment variable with the recorder's orders, as JSON. ``shared`` in it names a folder that autotune and all
processes of the script see."""
CAME = "came-{}"
"""Marker file in the shared folder, by process id: the recorder is in that process."""
TRAININGS = {"launch", "train"}
"""Roles in which a script trains for real: autotune never ends it."""
OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 7)
"""Oldest versions that autotune is tested with. A script may have others than autotune."""


def arrive() -> None:
    """Does what the environment asks for, most of it as soon as torch is imported."""
    text = os.environ.get(ORDERS)
    if not text:
        return
    orders = json.loads(text)
    if "shared" in orders:
        _or_give_up(orders, lambda: _note_arrival(orders["shared"]))
    if "sandbox" in orders:
        _or_give_up(orders, lambda: enter(orders["sandbox"]))
    if orders["role"] not in TRAININGS:
        from .left_out import leave_out

        leave_out()
    if orders["role"] == "serve":
        from .tokenizing import watch_tokenizers

        watch_tokenizers()
    after_import("torch", lambda: _or_give_up(orders, lambda: _begin(orders)))


def _note_arrival(shared: str) -> None:
    with contextlib.suppress(OSError):  # a launched script may start ranks on another machine
        open(os.path.join(shared, CAME.format(os.getpid())), "w").close()


def _begin(orders: dict[str, Any]) -> None:
    """Takes up the role."""
    _require_known_versions()
    from . import launched, look, runner
    from .live import training

    roles = {
        "look": look.begin, "serve": runner.begin, "job": runner.begin, "launch": launched.begin,
        "train": training.begin,
    }  # fmt: skip
    roles[orders["role"]](orders)


def _or_give_up(orders: dict[str, Any], what: Callable[[], None]) -> None:
    """Calls a function. If it fails, a burst ends; real training continues without the tuned config."""
    try:
        what()
    except Exception as error:  # noqa: BLE001 - of whatever kind
        if orders["role"] in TRAININGS:
            print(f"autotune: {error}; training continues unchanged", file=sys.stderr)
            return
        with contextlib.suppress(Exception):  # the parent may have ended, too
            from ..timing.wire import Wire
            from .ending import give_up

            give_up(Wire.to(orders["socket"]), error)
        os._exit(1)


def _require_known_versions() -> None:
    """Raises RuntimeError if the script's interpreter or torch is older than the recorder supports."""
    torch = str(sys.modules["torch"].__version__)
    if sys.version_info < OLDEST_PYTHON:
        raise RuntimeError(f"expected Python {_dotted(OLDEST_PYTHON)} or newer, got {_dotted(sys.version_info[:2])}")
    if tuple(int(part) for part in re.findall(r"\d+", torch)[:2]) < OLDEST_TORCH:
        raise RuntimeError(f"expected torch {_dotted(OLDEST_TORCH)} or newer, got {torch}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
