"""Unique identification of a process, also after it has ended."""

from __future__ import annotations

import os
import platform
from typing import Any

import psutil


def this_process() -> list[Any]:
    """Identifies this process uniquely: by its machine, its id, and its start time."""
    return [platform.node(), os.getpid(), psutil.Process().create_time()]


def running(described: Any) -> int | None:
    """The id of a process that `this_process` described, if it still runs on this machine."""
    try:
        node, pid, created = described
        alive = node == platform.node() and psutil.Process(pid).create_time() == created
    except (TypeError, ValueError, psutil.Error):
        return None
    return int(pid) if alive else None
