"""Whether a script seems to change its data sets between epochs, which persistent workers would not see.

A look does not reach an epoch's end, so this reads the source. It looks for methods that set something, in the script's
classes of anything that a data set holds, and for loops that set an attribute of such an object, or an item of one.
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

from .attributes import held_by

_SETS = {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR"}
_CHANGES = {"append", "extend", "insert", "clear", "update", "shuffle", "sort", "reverse", "pop", "remove"}
"""Methods that change a list, a dictionary or a set, and functions that shuffle one."""


def may_change(datasets: Iterable[Any], is_own: Callable[[type], bool], files: Iterable[str]) -> bool:
    """Whether the source shows that data sets may change.

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
    for node in _repeated(tree):
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            yield from _path(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            for changed in (node.func.value, *node.args):
                yield from _path(changed)


def _repeated(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields nodes in loops, in functions of the file that loops call, and in those that frameworks call."""
    functions: dict[str, list[ast.AST]] = {}
    waiting: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.setdefault(node.name, []).append(node)
        elif isinstance(node, (ast.For, ast.While)):
            waiting.append(node)
    waiting += [each for name in functions if name.startswith("on_") for each in functions[name]]
    seen: set[ast.AST] = set()
    for top in waiting:  # grows as it goes
        for node in ast.walk(top):
            if node not in seen:
                seen.add(node)
                yield node
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                waiting += functions.pop(called, ())


def _path(node: ast.AST) -> Iterator[str]:
    """Yields the attributes in an expression such as ``a.b[0].c``, except those of ``self``."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(node, ast.Attribute) and not _is_self(node.value):
            yield node.attr
        node = node.func if isinstance(node, ast.Call) else node.value


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
