"""The project's shape: who may import whom, where torch may appear, how long a file may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"
LAYERS = (
    {"errors", "units", "files"},
    {"config", "hardware", "facts", "readings"},
    {"measurement"},
    {"numerics", "profiles"},
    {"result", "caps", "choices", "space", "wording", "memory"},
    {"workload", "batches", "adapters", "fingerprint"},
    {"runtime"},
    {"integrations", "loading"},
    {"burst"},
    {"progress"},
    {"verify", "ablation", "search"},
    {"check", "cross_file", "cross", "diagnosis", "gather", "summary", "compare", "compare_formats", "warm_start"},
    {"console_compare", "console_hardware", "console_profile", "console_trials", "console"},
    {"report", "tune"},
    {"options", "commands", "cli"},
    {"__main__"},
)
"""From the bottom up: a module imports from its own layer and from those below."""
MAY_IMPORT_TORCH = {
    "adapters/__init__",
    "adapters/lightning",
    "adapters/loaders",
    "adapters/transformers",
    "batches",
    "fingerprint",
    "integrations/common",
    "integrations/lightning",
    "loading",
    "runtime",
    "workload",
    "burst/agreement",
    "burst/check",
    "burst/loop",
    "burst/peaks",
    "burst/profiling",
    "burst/trainer",
    "burst/training",
    "burst/worst",
    "burst/worker",
    "burst/zygote",
}
MAX_LINES = 400


def module_files() -> list[Path]:
    """All files of the package but its `__init__`, which only names what others define."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports anywhere, those for type checkers alone left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(name: str) -> int:
    """The layer of a module of ours."""
    return next(index for index, names in enumerate(LAYERS) if name in names)


def own_name(path: Path) -> str:
    """The top-level name of a file's module."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", module_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    """No module imports from a layer above its own."""
    known = {name for names in LAYERS for name in names}
    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] == "autotune" and len(parts) > 1 and parts[1] in known:
            assert layer(parts[1]) <= layer(own_name(path)), f"{path.name} imports {imported}"


@pytest.mark.parametrize("path", module_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_stays_in_the_children(path: Path) -> None:
    """Only what runs in a child, or in the user's training, imports torch."""
    name = str(path.relative_to(PACKAGE).with_suffix("")).replace("\\", "/")
    uses_torch = any(imported.split(".")[0] == "torch" for imported in imports(path))
    assert not uses_torch or name in MAY_IMPORT_TORCH


@pytest.mark.parametrize("path", module_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_is_short_and_says_why_it_exists(path: Path) -> None:
    """A file has one job, a docstring that says which, and fewer than 400 lines."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MAX_LINES
    assert ast.get_docstring(ast.parse(text))


def test_importing_the_package_imports_next_to_nothing() -> None:
    """`import autotune` brings in neither torch nor pydantic nor optuna."""
    code = "import sys, autotune; print([m for m in ('torch', 'pydantic', 'optuna', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_the_promised_ones() -> None:
    """What a training script may import from `autotune` is there."""
    import autotune

    assert set(autotune.__all__) == {"AutotuneError", "TrainConfig", "Tuned", "Workload", "__version__", "load"}
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None
