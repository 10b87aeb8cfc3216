"""Where is what: every file of the package with the first line of its docstring, every other folder with its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH = 26
FOLDERS = {
    "benchmarks/": "what the documentation claims, measured; a workload or a script a file",
    "tests/": "the rooms of autotune/ again; workloads/: tiny and faulty ones; faults/: what is done to it on purpose",
    "docs/": "these pages; _scripts/ makes the parts of them that come from the code",
    "results/": "<machine>/<workload>.json and .html: real measurements only",
    ".ci/": "run: all that continuous integration checks; wheel: the package in a fresh environment",
}


def text() -> str:
    """The tree, as a block of code."""
    return "\n".join(["```text", *_lines(), "```"])


def _lines() -> Iterator[str]:
    yield from _folder(ROOT / "autotune", 0)
    for name, meaning in FOLDERS.items():
        yield f"{name:<{WIDTH}} {meaning}"


def _folder(folder: Path, depth: int) -> Iterator[str]:
    """A package: its own line, its files, then the packages below it."""
    indent = "  " * depth
    yield f"{indent + folder.name + '/':<{WIDTH}} {_first_line(folder / '__init__.py')}"
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield f"{indent + '  ' + path.name:<{WIDTH}} {_first_line(path)}"
    for below in sorted(folder.iterdir()):
        if (below / "__init__.py").is_file():
            yield from _folder(below, depth + 1)


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].removesuffix(".").replace("``", "").replace("`", "")
