"""Which code a file may name to be run: what lies in the working directory, and nothing that it only refers to."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path

from autotune.commands.options import parse_writable
from autotune.errors import UsageError
from autotune.results.result import WorkloadRecord
from autotune.scripts.script import Script
from autotune.workload.target import split_target


def trained_by(workload: WorkloadRecord, file: Path, model: str, *, trust: bool) -> str | Script:
    """What to train: what the person named by ``--model``, else what the file names, if that may be run.

    Raises:
        TargetError: What the file names is no target.
        UsageError: It may not be run, or its program is not here.
    """
    if workload.script is None or model:
        return target_of(workload.target, file, model, trust=trust)
    script = Script.of(workload.script.command)
    if not (trust or _is_own_command(script.command)):
        raise UsageError(
            f"{file} names the command {script.text}: a file from elsewhere could run anything that way; "
            "look at it, and pass --trust if it is yours"
        )
    return script


def allowing(target: str | Script, writable: Iterable[Path], *, any_network: bool) -> str | Script:
    """The same, where a script may change what was named, and connect where the person says; a target has no need.

    Raises:
        UsageError: There is no such path.
    """
    if isinstance(target, str):
        return target
    return replace(target, writable=parse_writable(writable), any_network=any_network)


def _is_own_command(command: Sequence[str]) -> bool:
    """Whether it is Python, running a file of the working directory."""
    if len(command) < 2 or not Path(command[0]).name.startswith("python"):
        return False
    source = Path(command[1])
    return source.suffix == ".py" and source.is_file() and _is_own(source.resolve(), Path.cwd().resolve())


def target_of(named: str, file: Path, model: str, *, trust: bool) -> str:
    """The workload to run: what the person named by ``--model``, else the target named in the file, if that may be run.

    With `trust`, the file may name any code that is installed here.

    Raises:
        TargetError: What the file names is no target.
        UsageError: It lies outside the working directory, or the attribute is not defined where it is looked for.
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
    else:  # what is not there at all is told by the import
        return named
    raise UsageError(
        f"{file} names {named}, {why}: a file from elsewhere could run any code that way; "
        "name the workload with --model TARGET, or pass --trust"
    )


def _source_of(module: str, folder: Path) -> Path | None:
    """The file that an import of a module would run, found without importing its packages; None where there is none.

    The working directory comes first unless it is on the path already, as when the workload is imported.
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
    """Whether a file lies in the folder, and in no environment that lies there too."""
    environments = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    installed = any(folder in place.parents and source.is_relative_to(place) for place in environments)
    return source.is_relative_to(folder) and not installed and "site-packages" not in source.parts


def _defines(source: Path, attribute: str) -> bool:
    """Whether a module makes the attribute itself: by its imports, ``train:os.system`` would be within reach."""
    first, *rest = attribute.split(".")
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return True  # cannot be imported either, which is told there
    names = set(_names(tree))
    borrowed = any((part, False) in names for part in (first, *rest))
    return (first, True) in names and not borrowed and not any(part.startswith("__") for part in rest)


def _names(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The names that a module's code binds, and whether by itself rather than by an import."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, True
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0], False
