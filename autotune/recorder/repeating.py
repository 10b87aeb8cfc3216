"""Finds in a file's tree what a script does again and again. Needs no torch: the parent process uses it too."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def repeated(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields nodes in loops, in functions of the file that loops call, and in those that frameworks call.

    What a ``for`` goes through is computed once, and so is what follows a loop in its ``else``.
    """
    functions: dict[str, list[ast.AST]] = {}
    waiting: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.setdefault(node.name, []).append(node)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            waiting += [node.target, *node.body]
        elif isinstance(node, ast.While):
            waiting += [node.test, *node.body]
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
