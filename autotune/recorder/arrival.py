"""The recorder's arrival in an interpreter: it waits until torch is imported, and takes up the role it was given."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

from .importing import after_import

ORDERS = "AUTOTUNE_RECORDER"
"""In the environment of a script: what the recorder is to do there, as JSON."""


def arrive() -> None:
    """Does what the environment asks for, as soon as torch is there. A recorder that fails must not harm the script."""
    text = os.environ.get(ORDERS)
    if not text:
        return
    orders = json.loads(text)

    def begin() -> None:
        try:
            _roles()[orders["role"]](orders)
        except Exception:  # noqa: BLE001 - of whatever kind
            traceback.print_exc()

    after_import("torch", begin)


def _roles() -> dict[str, Callable[[dict[str, Any]], None]]:
    from . import launched, look, runner

    return {"look": look.begin, "serve": runner.begin, "job": runner.begin, "launch": launched.begin}
