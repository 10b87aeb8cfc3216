"""Files are kept from a script's first line on, before torch is imported and where nobody ever imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.recorder import snapshot
from autotune.scripts import Script
from autotune.scripts.user_files import ProtectedFiles


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProtectedFiles:
    """Of a run whose script is about to start, in a folder with a log and another folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    home = tmp_path / "home"
    (home / "old").mkdir(parents=True)
    (home / "old" / "a.txt").write_text("a")
    (home / "log.txt").write_text("mine\n")
    monkeypatch.chdir(home)
    files = ProtectedFiles(tmp_path / "run")
    snapshot.look_before(str(files.folder), str(home), set())
    return files


def test_files_are_kept_by_python_that_never_imports_torch(kept: ProtectedFiles) -> None:
    """As where a log is begun anew above the imports, or a shell script prepares data for the one that trains."""
    command = Script((sys.executable, "-c", "import shutil; open('log.txt', 'w').write('x'); shutil.rmtree('old')"))
    environment = command.environment({"role": "look", "keep": str(kept.folder)}, os.environ)
    subprocess.run(command.command, env=environment, check=True)
    assert (Path("log.txt").read_text(), Path("old").exists()) == ("x", False)
    kept.close()
    assert (Path("log.txt").read_text(), Path("old", "a.txt").read_text()) == ("mine\n", "a")


def test_a_cache_that_the_script_names_itself_is_left_alone(kept: ProtectedFiles, tmp_path: Path) -> None:
    """As by a first line that sets HF_HOME, above the imports."""
    (tmp_path / "models").mkdir()
    code = f"""
import os, sys
from autotune.recorder import journal
journal.begin(sys.argv[1])
os.environ["HF_HOME"] = {str(tmp_path / "models")!r}
import torch
from autotune.recorder.saving import leave_out_checkpoints
leave_out_checkpoints(journal.begun())
open(os.environ["HF_HOME"] + "/weights", "w")
"""
    subprocess.run([sys.executable, "-c", code, str(kept.folder)], check=True)
    kept.close()
    assert (tmp_path / "models" / "weights").exists()
