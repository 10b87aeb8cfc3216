"""Waits until a module is imported: torch, which the recorder needs, or a module that must be changed right after."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def after_import(name: str, then: Callable[[], None]) -> None:
    """Calls a function as soon as a module has been imported: at once if it already is, unless it is still loading.

    Errors of the function are only printed, so that the import does not fail.
    """

    def safely() -> None:
        try:
            then()
        except Exception:  # noqa: BLE001 - of whatever kind
            traceback.print_exc()

    spec = getattr(sys.modules.get(name), "__spec__", None)
    if getattr(spec, "_initializing", False):  # it imports what calls this
        spec.__class__ = _LoadingSpec
        spec.__dict__.setdefault("waiting", []).append(lambda: after_import(name, then))
    elif name in sys.modules:
        safely()
    else:
        sys.meta_path.insert(0, _AfterImport(name, safely))


class _LoadingSpec(importlib.machinery.ModuleSpec):
    """The spec of a module that is being loaded: when importlib marks in it that loading has ended, it calls functions.

    Before any other line runs: ``from module import name`` has not looked up the name yet.
    """

    waiting: list[Callable[[], None]]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = importlib.machinery.ModuleSpec  # type: ignore[assignment]
            for then in self.__dict__.pop("waiting"):
                then()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds a module as usual, with a loader that calls a function once the module is imported.

    It stays until then: many libraries only check for a module with ``importlib.util.find_spec``.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then
        self._is_asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with another loader."""
        if fullname != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()


class _NotifyingLoader(importlib.abc.Loader):
    """A loader that calls a function after loading; other attributes come from the module's own loader."""

    def __init__(self, loader: Any, then: Callable[[], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Does what the module's own loader does."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """Does what the module's own loader does, then calls the function."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then()
