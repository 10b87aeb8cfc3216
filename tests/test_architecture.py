"""The project's shape: who may import whom, what the package offers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "autotune"


def module_files() -> list[Path]:
    """All files of the package but its `__init__`, which only names what others define."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def test_rooms_import_downward_and_torch_stays_in_the_children() -> None:
    """The contracts in pyproject.toml hold: import-linter finds no import that breaks one."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", module_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_why_it_exists(path: Path) -> None:
    """A file holds one idea, and its docstring says which."""
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("room", sorted(PACKAGE.glob("*/__init__.py")), ids=lambda path: path.parent.name)
def test_every_room_says_what_it_may_import_and_where_to_start(room: Path) -> None:
    """A contributor opens a room by its `__init__`."""
    docstring = " ".join((ast.get_docstring(ast.parse(room.read_text(encoding="utf-8"))) or "").split())
    assert re.search(r"\b[Mm]ay (not )?import\b|[Tt]hey import|import no other", docstring)
    assert "Start with" in docstring or "Start here" in docstring


def test_importing_the_package_imports_next_to_nothing() -> None:
    """`import autotune` brings in neither torch nor pydantic nor optuna."""
    code = "import sys, autotune; print([m for m in ('torch', 'pydantic', 'optuna', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_the_promised_ones() -> None:
    """What a training script may import from `autotune` is there, and an editor shows nothing else."""
    import autotune

    assert set(dir(autotune)) == {
        "AutotuneError",
        "Result",
        "TrainConfig",
        "Tuned",
        "Workload",
        "__version__",
        "apply",
        "live",
        "load",
        "read_result",
        "tune",
    }
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None
