"""Whether a script seems to change its data sets between epochs, which workers that persist would never see.

An epoch's end is not reached in a look; so its source is read: methods of a data set's own class that set something,
and loops of the script's that set what is an attribute of a data set.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from .attributes import nested

_SETS = {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR"}
_CHANGES = {"append", "extend", "insert", "clear", "update", "shuffle"}
"""Names of what changes a list, a dictionary or a set, or shuffles one, in a method that sets nothing itself."""


def may_change(datasets: Iterable[Any], is_own: Callable[[type], bool], files: Iterable[str]) -> bool:
    """Whether anything speaks for it.

    Args:
        datasets: That training draws from.
        is_own: Whether a class is the script's, not a library's.
        files: The script's.
    """
    parts = nested(*datasets)
    kinds = {kind for part in parts for kind in type(part).__mro__ if is_own(kind)}
    names = {name for one in (*parts, *kinds) for name in getattr(one, "__dict__", {}) if not name.startswith("__")}
    return any(map(_has_setter, kinds)) or any(name in names for file in files for name in _set_in_loops(file))


def _has_setter(kind: type) -> bool:
    """Whether a public method sets something: others are mostly called from the constructor."""
    public = [value for name, value in vars(kind).items() if not name.startswith("_")]
    setters = [value.fset if isinstance(value, property) else value for value in public]
    return any(_sets(inspect.unwrap(one).__code__) for one in setters if isinstance(one, FunctionType))


def _sets(code: CodeType) -> bool:
    if _CHANGES & {*code.co_names}:
        return True
    return any(instruction.opname in _SETS for instruction in dis.get_instructions(code))


def _set_in_loops(file: str) -> Iterator[str]:
    """Attributes that a file sets within a loop, or items of them, of whatever is not the object of a method."""
    tree = ast.Module([], [])
    with contextlib.suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        tree = ast.parse(Path(file).read_bytes())
    for loop in ast.walk(tree):
        if isinstance(loop, (ast.For, ast.While)):
            for node in ast.walk(loop):
                is_set = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
                own = node.value if isinstance(node, ast.Subscript) else node
                if is_set and isinstance(own, ast.Attribute) and not _is_self(own.value):
                    yield own.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
