"""The recorder's arrival in an interpreter: it waits until torch is imported, and takes up the role it was given."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from .importing import after_import
from .quiet import keep_quiet

ORDERS = "AUTOTUNE_RECORDER"
"""In the environment of a script: what the recorder is to do there, as JSON."""


def arrive() -> None:
    """Does what the environment asks for, as soon as torch is there."""
    text = os.environ.get(ORDERS)
    if not text:
        return
    orders = json.loads(text)
    if orders["role"] != "launch":
        keep_quiet()
    after_import("torch", lambda: _roles()[orders["role"]](orders))


def _roles() -> dict[str, Callable[[dict[str, Any]], None]]:
    from . import launched, look, runner

    return {"look": look.begin, "serve": runner.begin, "job": runner.begin, "launch": launched.begin}
