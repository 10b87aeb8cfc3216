"""Makes the tree of all files of the package and the benchmarks, each with the first line of its docstring."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH, COMMENT_WIDTH = 26, 76
FOLDERS = {
    "tests/": "the rooms of autotune/ again; workloads/: tiny and faulty ones; faults/",
    "docs/": "these pages; _scripts/ makes the parts of them that come from the code",
    "results/": "<machine>/<workload>.json and .html: real measurements only",
    ".ci/": "run: all that is checked; wheel: the package in a fresh environment; tag: may it be published",
}


def text() -> str:
    """The tree, as a code block."""
    return "\n".join(["```text", *_lines(), "```"])


def _lines() -> Iterator[str]:
    yield from _folder(ROOT / "autotune", 0)
    yield from _folder(ROOT / "benchmarks", 0)
    for name, meaning in FOLDERS.items():
        yield from _entry(name, meaning)


def _folder(folder: Path, depth: int) -> Iterator[str]:
    """A package: its own line, its files, then the packages below it."""
    indent = "  " * depth
    yield from _entry(f"{indent}{folder.name}/", _first_line(folder / "__init__.py"))
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield from _entry(f"{indent}  {path.name}", _first_line(path))
    for below in sorted(folder.iterdir()):
        if (below / "__init__.py").is_file():
            yield from _folder(below, depth + 1)


def _entry(name: str, meaning: str) -> Iterator[str]:
    """A name and its comment, wrapped into further lines where it is long."""
    for part in textwrap.wrap(meaning, COMMENT_WIDTH):
        yield f"{name:<{WIDTH}} {part}"
        name = ""


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].removesuffix(".").replace("``", "").replace("`", "")
