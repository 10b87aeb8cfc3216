"""The recorder's arrival in an interpreter: it waits until torch is imported, and takes up the role it was given."""

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
from .left_out import leave_out
from .tokenizing import watch_tokenizers

ORDERS = "AUTOTUNE_RECORDER"
"""In the environment of a script: what the recorder is to do there, as JSON. With ``shared``: a folder that all
processes of the script and autotune see."""
CAME = "came-{}"
"""A file in the shared folder, by the id of the process: the recorder came into it."""
TRAININGS = {"launch", "train"}
"""Roles in which a script trains for real: nothing of ours ends it."""
OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 1)
"""That the recorder can be part of. A script may have others than autotune."""


def arrive() -> None:
    """Does what the environment asks for: most of it as soon as torch is there."""
    text = os.environ.get(ORDERS)
    if not text:
        return
    orders = json.loads(text)
    if "shared" in orders:
        _or_give_up(orders, lambda: _note_arrival(orders["shared"]))
    if "sandbox" in orders:
        _or_give_up(orders, lambda: enter(orders["sandbox"]))
    if orders["role"] not in TRAININGS:
        leave_out()
    if orders["role"] == "serve":
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
    """Does something; where it fails a burst ends, and a training goes on without what was found."""
    try:
        what()
    except Exception as error:  # noqa: BLE001 - of whatever kind
        if orders["role"] in TRAININGS:
            print(f"autotune: {error}; the training goes on as it is", file=sys.stderr)
            return
        with contextlib.suppress(Exception):  # the parent may be gone, too
            from .ending import give_up
            from .wire import Wire

            give_up(Wire.to(orders["socket"]), error)
        os._exit(1)


def _require_known_versions() -> None:
    """Raises RuntimeError where the script's interpreter or its torch is older than what the recorder knows."""
    torch = str(sys.modules["torch"].__version__)
    if sys.version_info < OLDEST_PYTHON:
        raise RuntimeError(f"expected Python {_dotted(OLDEST_PYTHON)} or newer, got {_dotted(sys.version_info[:2])}")
    if tuple(int(part) for part in re.findall(r"\d+", torch)[:2]) < OLDEST_TORCH:
        raise RuntimeError(f"expected torch {_dotted(OLDEST_TORCH)} or newer, got {torch}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
