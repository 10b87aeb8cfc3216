"""Keeps code that watches a real training from failing in it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def harmless(method: Method) -> Method:
    """Wraps a method: if it fails, it calls its object's ``give_up(reason)``, and training continues."""

    @functools.wraps(method)
    def tried(self: Any, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:  # noqa: BLE001 - a full disk, a device that has failed, a script's own strange parts
            self.give_up(f"{type(error).__name__}: {error}")

    return tried  # type: ignore[return-value]
