"""autotune's own code meets Windows and macOS as `tests.pretended` shows them; neither was ever run on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes import ROOT, budget

SYSTEMS = ("win32", "darwin")
PRETENDED = ROOT / "tests" / "pretended"
IMPORT_ALL = """
import importlib, os, pkgutil, sys
import autotune
from autotune.sandbox import system
for module in pkgutil.walk_packages(autotune.__path__, "autotune."):
    if module.name.rpartition(".")[2] not in {"__main__", "sitecustomize"}:  # they do something when they are imported
        importlib.import_module(module.name)
assert sys.platform == os.sys.platform == "linux"  # of the standard library, and of this test
print(system.WINDOWS, hasattr(system.os, "fork"), system.why_no_fork())
"""


def run_on(system: str, arguments: Sequence[str], folder: Path, status: int = 0) -> str:
    """What Python prints, in a folder, as if autotune were on another system whose terminal has few characters."""
    environment = {
        **os.environ, "PRETENDED": system, "PYTHONPATH": f"{PRETENDED}{os.pathsep}{ROOT}", "PYTHONIOENCODING": "cp1252",
    }  # fmt: skip
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="cp1252")
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.parametrize(("system", "line"), [("win32", "True False win32"), ("darwin", "False True darwin")])
def test_every_module_is_imported(system: str, line: str, tmp_path: Path) -> None:
    """No module needs at import what the system lacks."""
    assert run_on(system, ["-c", IMPORT_ALL], tmp_path).startswith(line)


def test_scripts_are_refused_on_windows(tmp_path: Path) -> None:
    """Their sockets do not exist there, and the message says what to do instead."""
    text = run_on("win32", ["-m", "autotune", "run", "--", "python", "train.py"], tmp_path, status=2)
    assert "WSL2" in text


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_model_is_tuned(system: str, tmp_path: Path) -> None:
    """A whole tuning, with its workers, duets and proof; then its result is shown."""
    arguments = ["-m", "autotune", "--model", "tests.workloads.tiny:build", "--budget", budget(20), "--out", "r.json"]
    run_on(system, arguments, tmp_path)
    assert "samples/s" in run_on(system, ["-m", "autotune", "show", "r.json"], tmp_path)
    assert (tmp_path / "r.html").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_tests_are_collected(system: str) -> None:
    """What needs Linux is left out before it is imported, and the report's head says so."""
    folders = [] if system == "win32" else ["tests/sandbox", "tests/knobs"]  # no module needs what Windows lacks
    text = run_on(system, ["-m", "pytest", "--collect-only", "-n", "0", "-p", "no:cacheprovider", *folders], ROOT)
    assert "skipped: tests/sandbox needs Linux" in text
    assert "<Dir sandbox>" not in text
    assert "<Dir knobs>" in text
