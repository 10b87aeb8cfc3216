"""Decides which code a result file may run: code in the working directory, but nothing that it only imports."""

from __future__ import annotations

import ast
import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from autotune.errors import UsageError
from autotune.results.result import WorkloadRecord
from autotune.scripts.script import Script
from autotune.secrets import is_masked
from autotune.sessions.options import Existing, read, unsuited
from autotune.workload.target import split_target

_HARMLESS = {"-u", "-B", "-O", "-OO"}
"""Options of Python that may precede a script. Others run other code, or change where Python looks for it."""


def trained_by(
    workload: WorkloadRecord, file: Path, *, model: str, command: Sequence[str], trust: bool
) -> str | Script:
    """The workload to train: from ``--model`` or the command after ``--``, else from the file, if that may run.

    Args:
        workload: The file's record of the workload.
        file: The file.
        model: Value of ``--model``; empty if it was left out.
        command: The words after ``--``.
        trust: Whether the file may name any code.

    Raises:
        TargetError: The file's target is malformed.
        UsageError: The workload may not run, or its program is missing; or a command is given for a model.
    """
    if command:
        if workload.script is None or model:
            raise UsageError(
                f"expected --model alone, or a command for a result of a script, got a command for {workload.target}; "
                "leave one of them out"
            )
        return Script.of(command)
    if workload.script is None or model:
        return target_of(workload.target, file, model, trust=trust)
    if is_masked(workload.script.command):
        raise UsageError(
            f"{file} names the command {shlex.join(workload.script.command)}, in which *** stands for a secret that no "
            "file keeps; pass the command with its secret after --, as in -- python train.py"
        )
    script = Script.of(workload.script.command)
    if not (trust or _is_own_command(script.command)):
        raise UsageError(
            f"{file} names the command {script.text}, and a file from elsewhere could run anything that way: expected "
            f"{sys.executable} with a script of the working directory; look at it, and pass --trust on the command "
            "line if it is yours"
        )
    return script


def allowing(target: str | Script, writable: Sequence[Path], *, any_network: bool) -> str | Script:
    """Adds writable paths and network access to a script.

    Raises:
        UsageError: A path does not exist; or a model, which nothing restricts, is given either.
    """
    if isinstance(target, str):
        if writable or any_network:
            raise unsuited("writable" if writable else "network")
        return target
    return replace(target, writable=read(Existing, "writable", [*writable]) or (), any_network=any_network)


def _is_own_command(command: Sequence[str]) -> bool:
    """Whether a command runs a file or a module of the working directory with autotune's own Python."""
    if not _is_this_python(command[0]):
        return False
    words = [*itertools.dropwhile(_HARMLESS.__contains__, command[1:]), "", ""]
    folder = Path.cwd().resolve()
    if words[0] == "-m":
        module = _source_of(words[1], folder) if words[1] else None
        runs = module.with_name("__main__.py") if module is not None and module.stem == "__init__" else module
        return runs is not None and _is_own(runs.resolve(), folder)
    source = Path(words[0])
    return source.suffix == ".py" and source.is_file() and _is_own(source.resolve(), folder)


def _is_this_python(program: str) -> bool:
    """Whether a program is this interpreter, in the same environment, which decides what it imports."""
    place = shutil.which(program)
    if place is None or not sys.executable:
        return False
    environments = {Path(program).parent.resolve() for program in (place, sys.executable)}
    return len(environments) == 1 and os.path.samefile(place, sys.executable)


def target_of(named: str, file: Path, model: str, *, trust: bool) -> str:
    """The target to run: the value of ``--model``, else the target named in the file, if that may run.

    With `trust`, the file may name any code that is installed here.

    Raises:
        TargetError: The file's target is malformed.
        UsageError: The target is outside the working directory, or its module does not define the attribute itself.
    """
    if model or trust:
        return model or named
    module, attribute = split_target(named)
    folder = Path.cwd().resolve()
    source = Path(module).resolve() if module.endswith(".py") else _source_of(module, folder)
    if source is None or not _is_own(source, folder):
        why = f"which is not found in the working directory {folder}"
    elif source.is_file() and not _defines(source, attribute):
        why = f"which {source} does not define itself"
    else:  # the import reports a missing file
        return named
    raise UsageError(
        f"{file} names {named}, {why}: a file from elsewhere could run any code that way; "
        "name the workload with --model TARGET, or pass --trust on the command line"
    )


def _source_of(module: str, folder: Path) -> Path | None:
    """The file that importing a module would run, without importing its packages; None if there is none.

    The working directory comes first unless it is on the path already, as for the import of the workload.
    """
    if module.partition(".")[0] in {*sys.builtin_module_names, *sys.stdlib_module_names}:
        return None
    places = [*([] if str(folder) in sys.path else [str(folder)]), *sys.path]
    origin = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return None
        origin, places = spec.origin, list(spec.submodule_search_locations or ())
    return Path(origin).resolve() if origin is not None and origin.endswith(".py") else None


def _is_own(source: Path, folder: Path) -> bool:
    """Whether a file is in the folder, but not in an environment inside the folder."""
    environments = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    installed = any(folder in place.parents and source.is_relative_to(place) for place in environments)
    return source.is_relative_to(folder) and not installed and "site-packages" not in source.parts


def _defines(source: Path, attribute: str) -> bool:
    """Whether a module defines the attribute itself; through its imports ``train:os.system`` would be reachable."""
    first, *rest = attribute.split(".")
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return True  # the import reports why it cannot be read
    names = set(_names(tree))
    borrowed = any((part, False) in names for part in (first, *rest))
    return (first, True) in names and not borrowed and not any(part.startswith("__") for part in rest)


def _names(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The names that a module binds, each with whether it is a definition rather than an import."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, True
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0], False
