"""Finds in a file's tree what a script does again and again. Needs no torch: the parent process uses it too."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator


def repeated(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields nodes in loops, in functions of the file that loops call, and in those that frameworks call.

    What a ``for`` goes through, and the ``else`` of a loop, are computed once. An attribute may call a method of the
    file, but no function: ``model.train()`` is not the file's ``train``.
    """
    functions: dict[str, list[ast.AST]] = {}
    methods: dict[str, list[ast.AST]] = {}
    in_classes = {each for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body}
    waiting: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            (methods if node in in_classes else functions).setdefault(node.name, []).append(node)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            waiting += [node.target, *node.body]
        elif isinstance(node, ast.While):
            waiting += [node.test, *node.body]
    named = itertools.chain(functions.items(), methods.items())
    waiting += [each for name, nodes in named if name.startswith("on_") for each in nodes]
    seen: set[ast.AST] = set()
    for top in waiting:  # grows as it goes
        for node in ast.walk(top):
            if node not in seen:
                seen.add(node)
                yield node
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute):
                waiting += methods.pop(called.attr, ())
            elif isinstance(called, ast.Name):
                waiting += functions.pop(called.id, ())
