"""The one sentence of an error, for tests of what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.errors import TargetError, WorkloadError


def told(kind: type[TargetError | WorkloadError], action: Callable[[], Any]) -> tuple[str, str | None]:
    """The message of the error that an action ends in, and its trace; the message is one line."""
    with pytest.raises(kind) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message, getattr(caught.value, "trace", None)
