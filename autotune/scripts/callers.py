"""Finds the one call that a function's ``**kwargs`` come from: what is said there is changed there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autotune.scripts.source import CannotEditError, Source, last_name

_PLAIN_DECORATORS = {"staticmethod", "classmethod"}
_ONLY_NAMED = {"super", "isinstance", "issubclass"}
"""Functions that are told a class without making one."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Caller:
    """The call of a function that hands its ``**kwargs`` on.

    Attributes:
        call: The one call of the function, or of the class that it makes, in the file.
        given: What the call gives by name that comes to be in ``**kwargs``.
        may_spread: Whether it gives more, in a dictionary of its own.
        is_shared: Whether the function hands its ``**kwargs`` on to other calls, too.
        parameters: Arguments that never come to be in ``**kwargs``: the function has parameters of these names.
    """

    call: ast.Call
    given: Mapping[str, ast.expr]
    may_spread: bool
    is_shared: bool
    parameters: frozenset[str]


def caller_of(source: Source, node: ast.expr) -> Caller | None:
    """Where what stands in ``**node`` comes from.

    Args:
        source: The file.
        node: What is handed on.

    Returns:
        None where it is not the ``**kwargs`` of a function around it, or nothing in this file calls that.

    Raises:
        CannotEditError: Several calls give it, or the function changes it, or it cannot be told.
    """
    if not isinstance(node, ast.Name):
        return None
    functions: list[_Function | ast.Lambda] = source.around(node, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    function = next((one for one in functions if one.args.kwarg is not None and one.args.kwarg.arg == node.id), None)
    if function is None:
        return None
    told = f"may be given by **{node.id}"
    if isinstance(function, ast.Lambda):
        raise CannotEditError(f"{told} of a lambda, whose calls cannot be told")
    holders: list[ast.stmt] = source.around(function, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    makes = function.name == "__init__" and bool(holders) and isinstance(holders[0], ast.ClassDef)
    own = holders[0] if makes and isinstance(holders[0], ast.ClassDef) else function
    reads, calls = _reads(source, own.name), source.calls(own.name)
    if any(id(read) not in {*map(id, _harmless(source)), *(id(call.func) for call in calls)} for read in reads):
        raise CannotEditError(f"{told}, and {own.name} is not only called, but used in other ways")
    if not calls:
        return None
    if len(calls) > 1:
        raise CannotEditError(f"{told}, and {own.name} is called in {len(calls)} places, not one")
    _require_plain(source, function, own, told)
    others = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one.id == node.id and one is not node]
    handed_on = {id(one.value) for call in source.calls() for one in call.keywords if one.arg is None}
    if not all(id(one) in handed_on for one in others):
        raise CannotEditError(f"{told}, which {own.name} reads or changes by itself")
    (call,) = calls
    parameters = frozenset(one.arg for one in (*function.args.args, *function.args.kwonlyargs))
    given = {one.arg: one.value for one in call.keywords if one.arg is not None and one.arg not in parameters}
    return Caller(call, given, any(one.arg is None for one in call.keywords), bool(others), parameters)


def _require_plain(source: Source, function: _Function, own: _Function | ast.ClassDef, told: str) -> None:
    """That nothing but this is called by its name, and nothing else instead of it.

    Raises:
        CannotEditError: It is decorated, or the name stands for other things, too.
    """
    decorators = {last_name(one) for one in (*function.decorator_list, *own.decorator_list)}
    if not decorators <= _PLAIN_DECORATORS:
        raise CannotEditError(f"{told} of {own.name}, which is decorated")
    names = source.names(own.name)
    if len([one for one in names if not (isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))]) != 1:
        raise CannotEditError(f"{told} of {own.name}, which is the name of other things as well")


def _reads(source: Source, name: str) -> list[ast.expr]:
    found = [one for one in ast.walk(source.tree) if isinstance(one, (ast.Name, ast.Attribute))]
    return [one for one in found if last_name(one) == name and isinstance(one.ctx, ast.Load)]


def _harmless(source: Source) -> Iterator[ast.AST]:
    """All within what names a class without making one."""
    named = [argument for call in source.calls(*_ONLY_NAMED) for argument in call.args]
    for one in (*named, *_annotations(source.tree)):
        yield from ast.walk(one)


def _annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            yield node.returns
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            yield node.annotation
