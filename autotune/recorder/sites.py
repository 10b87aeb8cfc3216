"""Finds the calls in a script's own files that make its loaders and optimizers, where they can be changed.

It runs within the script's calls, so nothing here may harm the script.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib.util
import inspect
import itertools
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..torch_settings.naming import loader_key
from ..torch_settings.undo import Undo, in_reverse, put
from .attributes import held_by
from .repeating import repeated
from .surroundings import here

_TAKES_ANY_KEYWORD = 0x08
"""CO_VARKEYWORDS, a flag of code objects."""


class Sites:
    """Records the calls that make loaders and optimizers."""

    def __init__(self) -> None:
        self._folder = os.getcwd()
        between = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
        paths = sysconfig.get_paths()  # not "data", which is the prefix: a script may lie in /usr/src
        libraries = (*between, *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")))
        self._foreign = tuple(os.path.join(os.path.realpath(one), "") for one in libraries)
        self._made: weakref.WeakKeyDictionary[Any, dict[str, Any] | None] = weakref.WeakKeyDictionary()
        self._loaders: list[tuple[dict[str, Any], int, str | None]] = []  # site, id of the data set, key of the loader
        self._own_loaders: set[str] = set()
        self._of_trainer: set[int] = set()  # ids of data sets from which transformers' Trainer makes its own loaders
        self.look_away: Undo = in_reverse([_watch(DataLoader, self._on_loader), _watch(Optimizer, self._on_optimizer)])

    def described(self, loaders: list[Any], optimizers: list[Any]) -> dict[str, Any]:
        """Describes the sites of loaders and optimizers, and the script."""
        main = self._main
        return {
            "main": main if main is not None and self._is_own(main) else None,
            "folder": os.path.realpath(self._folder),
            "loaders": [self._of_loader(loader) for loader in loaders],
            "own_loaders": sorted(self._own_loaders),  # classes with their own iterator
            "optimizers": [self._site_of(optimizer) for optimizer in optimizers],
            "has_autotune": _has_autotune(),
            "here": here(),
            "may_change_data": bool(loaders) and self._may_change([loader.dataset for loader in loaders]),
        }

    @property
    def loaders(self) -> list[Any]:
        """All recorded loaders that are still alive."""
        return [one for one in list(self._made) if isinstance(one, DataLoader)]

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer of torch was made, and is still alive."""
        return any(isinstance(one, Optimizer) for one in list(self._made))

    def evaluates(self) -> bool:
        """Whether a file of the script puts a model into evaluation mode, and computes without gradients."""
        for place in self._files:
            with contextlib.suppress(OSError):
                text = Path(place).read_bytes()
                if b".eval()" in text and (b"no_grad" in text or b"inference_mode" in text):
                    return True
        return False

    @property
    def _main(self) -> str | None:
        """The script's main file; with ``python -m`` it is known once its packages are imported."""
        return _place(self._folder, _file_of(sys.modules.get("__main__")))

    @functools.cached_property
    def _files(self) -> list[str]:
        """The script's own files that are imported."""
        places = {_place(self._folder, _file_of(one)) for one in list(sys.modules.values())}
        return sorted(place for place in places if place is not None and self._is_own(place))

    def _is_own_class(self, kind: type) -> bool:
        place = _place(self._folder, _file_of(sys.modules.get(kind.__module__)))
        return place is not None and self._is_own(place)

    def _may_change(self, datasets: list[Any]) -> bool:
        with contextlib.suppress(Exception):  # classes of the script may raise
            return may_change(datasets, self._is_own_class, self._files)
        return True

    def _on_loader(self, loader: Any, site: dict[str, Any] | None) -> None:
        self._made[loader] = site
        if type(loader).__iter__ is not DataLoader.__iter__:
            self._own_loaders.add(type(loader).__name__)
        if site is not None:
            key = None
            with contextlib.suppress(Exception):
                key = loader_key(loader)
            self._loaders.append((site, id(loader.dataset), key))

    def _on_optimizer(self, optimizer: Any, site: dict[str, Any] | None) -> None:
        self._made[optimizer] = site

    def _site_of(self, made: Any) -> dict[str, Any] | None:
        with contextlib.suppress(TypeError):  # a class of the script may not be hashable
            return self._made.get(made)
        return None

    def _of_loader(self, loader: Any) -> dict[str, Any] | None:
        """The site of a loader, or of the loader with the same data set from which a framework made it."""
        site = self._site_of(loader)
        if site is None:
            datasets = {id(loader.dataset)} - self._of_trainer
            candidates = [one for one, dataset, _ in self._loaders if dataset in datasets]
            if not candidates or any(one != candidates[0] for one in candidates):
                return None
            site = candidates[0]
        others = {key for one, _, key in self._loaders if one == site}
        return {**site, "shared": len(others) > 1}

    def _site(self, frame: FrameType | None, made: Any, called: CodeType) -> dict[str, Any] | None:
        """The call in a file of the script that led here, past the constructors of libraries."""
        while frame is not None:
            code = frame.f_code
            place = _place(self._folder, code.co_filename)
            if place is not None and self._is_own(place):
                return {"file": place, **_position(frame), **_signature(made, called)}
            first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            if first is not made:
                if isinstance(made, DataLoader) and frame.f_globals.get("__name__", "").startswith("transformers."):
                    self._of_trainer.add(id(made.dataset))
                return None
            if code.co_name == "__init__":
                called = code
            frame = frame.f_back
        return None

    def _is_own(self, place: str) -> bool:
        return (
            place.startswith(_roots(self._folder, self._main)) and not self._is_foreign(place) and os.path.isfile(place)
        )

    def _is_foreign(self, place: str) -> bool:
        return place.startswith(self._foreign) or "site-packages" in place or "dist-packages" in place


def _watch(kind: Any, then: Any) -> Undo:
    """Calls ``then(made, site)`` after each construction of an object of a class."""
    original = kind.__init__
    callbacks = [then]

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with contextlib.suppress(Exception):
            for note in callbacks:
                note(self, note.__self__._site(sys._getframe(1), self, original.__code__))

    return in_reverse([put(kind, "__init__", construct), callbacks.clear])


def _has_autotune() -> bool:
    """Whether the script can import autotune, rather than another module of that name."""
    try:
        spec = importlib.util.find_spec("autotune")
    except (ImportError, ValueError):
        return False
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return any(os.path.isfile(os.path.join(folder, "recorder", "launched.py")) for folder in folders)


def _file_of(module: Any) -> str | None:
    """A module's file. Does not trigger the import of a lazy module."""
    with contextlib.suppress(AttributeError):
        name = object.__getattribute__(module, "__dict__").get("__file__")
        return name if isinstance(name, str) else None
    return None


@functools.cache
def _roots(folder: str, main: str | None) -> tuple[str, ...]:
    """The folders that hold a script's own files."""
    roots = {folder, os.path.dirname(main or folder)}
    return tuple(os.path.join(os.path.realpath(root), "") for root in roots)


@functools.cache
def _place(folder: str, name: str | None) -> str | None:
    """The path of a code object's file; None for names such as ``<string>``."""
    if not name or name.startswith("<"):
        return None
    return os.path.realpath(os.path.join(folder, name))


def _position(frame: FrameType) -> dict[str, Any]:
    """The line of a frame's current call, and its end (line and column, in bytes of UTF-8) if known."""
    positions = getattr(frame.f_code, "co_positions", None)  # since Python 3.11
    position = next(itertools.islice(positions(), frame.f_lasti // 2, None), None) if positions is not None else None
    end = [position[1], position[3]] if position is not None and None not in position else None
    return {"line": frame.f_lineno, "end": end}


def _signature(made: Any, called: CodeType) -> dict[str, Any]:
    """The arguments that a call takes: ``parameters`` by position, ``accepts`` by name, or None for any name."""
    names = called.co_varnames
    count = called.co_argcount
    by_name = list(names[1 : count + called.co_kwonlyargcount])
    return {
        "kind": type(made).__name__,
        "parameters": list(names[1:count]),
        "accepts": None if called.co_flags & _TAKES_ANY_KEYWORD else by_name,
    }


_SETS = {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR"}
_CHANGES = {"append", "extend", "insert", "clear", "update", "shuffle", "sort", "reverse", "pop", "remove"}
"""Methods that change a list, a dictionary or a set, and functions that shuffle one."""


def may_change(datasets: Iterable[Any], is_own: Callable[[type], bool], files: Iterable[str]) -> bool:
    """Whether the source shows that data sets may change between epochs, which persistent workers would not see.

    A look does not reach an epoch's end, so this reads the source. It looks for methods that set something, in the
    script's classes of anything that a data set holds, and for loops that set an attribute of such an object, or an
    item of one.

    Args:
        datasets: The data sets that training draws from.
        is_own: Whether a class is the script's, not a library's.
        files: The script's files.
    """
    parts = list(held_by(*datasets))
    kinds = {kind for part in parts for kind in type(part).__mro__ if is_own(kind)}
    names = {name for one in (*parts, *kinds) for name in getattr(one, "__dict__", {}) if not name.startswith("__")}
    return any(map(_has_setter, kinds)) or any(name in names for file in files for name in _set_in_loops(file))


def _has_setter(kind: type) -> bool:
    """Whether a public method sets something; private ones are mostly called from the constructor."""
    public = [value for name, value in vars(kind).items() if not name.startswith("_")]
    setters = [value.fset if isinstance(value, property) else value for value in public]
    return any(_sets(inspect.unwrap(one).__code__) for one in setters if isinstance(one, FunctionType))


def _sets(code: CodeType) -> bool:
    if _CHANGES & {*code.co_names}:
        return True
    return any(instruction.opname in _SETS for instruction in dis.get_instructions(code))


def _set_in_loops(file: str) -> Iterator[str]:
    """Yields attributes that a file sets repeatedly, or whose contents it sets, except those of ``self``."""
    tree = ast.Module([], [])
    with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        tree = ast.parse(Path(file).read_bytes())
    for node in repeated(tree):
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            yield from _path(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            for changed in (node.func.value, *node.args):
                yield from _path(changed)


def _path(node: ast.AST) -> Iterator[str]:
    """Yields the attributes in an expression such as ``a.b[0].c``, except those of ``self``."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Attribute) and not _is_self(node.value):
            yield node.attr
        node = node.func if isinstance(node, ast.Call) else node.value


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
