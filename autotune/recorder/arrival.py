"""The recorder's arrival in an interpreter: it waits until torch is imported, and takes up the role it was given."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

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

    if "torch" in sys.modules:
        begin()
    else:
        sys.meta_path.insert(0, _AfterImport("torch", begin))


def _roles() -> dict[str, Callable[[dict[str, Any]], None]]:
    from . import launched, look, runner

    return {"look": look.begin, "serve": runner.begin, "job": runner.begin, "launch": launched.begin}


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets a module be imported as ever, and calls a function afterwards, once.

    Args:
        name: Of the module.
        then: What to call.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then
        self._loader: Any = None

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with this in the place of its loader."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As its own loader does."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """As its own loader does; then whoever waits is called."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()
