"""What is left when processes are killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

from autotune.bursts.cleanup import end_processes


def test_half_a_library_does_not_stay_in_the_compilers_cache(tmp_path: Path) -> None:
    """Whoever compiles the same code next would load it; what was finished before stays."""
    building = tmp_path / "cabc_CxxBuild"
    building.mkdir()
    for name in ("cabc.so", "cabc.cpp", "cabcdef.so"):
        (tmp_path / name).touch()
    compiler = subprocess.Popen(["sleep", "60"], cwd=building)
    end_processes(lambda: [psutil.Process(compiler.pid)] if compiler.poll() is None else [])
    compiler.wait(10)
    assert {path.name for path in tmp_path.iterdir()} == {"cabc.cpp", "cabcdef.so"}
