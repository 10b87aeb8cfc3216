"""What a file may have run: code of the working directory that it defines itself, and no other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.commands.trust import target_of
from autotune.errors import UsageError
from autotune.results.files import write_document
from tests.factories import make_result
from tests.processes import run

OWN = """
import os, subprocess
from pathlib import Path
def build(): ...
class Factory:
    import shutil
    def make(self): ...
made = build
"""
LOUD = 'open("was-run", "w").close()\ndef build(): ...\n'
FILE = Path("from-elsewhere.json")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module, a package, a folder without `__init__`, and code beside it."""
    folder = tmp_path / "project"
    for name in ("train.py", "pkg/__init__.py", "pkg/mod.py", "plain/deep/mod.py", "../outside.py", "env/lib.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(OWN)
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "theirs.py").write_text(OWN)
    (folder / "link.py").symlink_to(tmp_path / "outside.py")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "prefix", str(folder / "env"))
    return folder


@pytest.mark.parametrize(
    "target",
    ["train:build", "train:made", "train:Factory.make", "pkg:build", "pkg.mod:build", "plain.deep.mod:build",
     "train.py:build", "plain/deep/mod.py:build", "pkg/../train.py:build", "no_such.py:build"],
)  # fmt: skip
def test_a_file_may_name_what_the_working_directory_defines(target: str) -> None:
    """By module or by path; what is not there at all is told by the import."""
    assert target_of(target, FILE, "", trust=False) == target


@pytest.mark.parametrize(
    "target",
    ["os:abort", "json:dumps", "torch:compile", "outside:build", "pkg/../../outside.py:build", "link:build",
     "link.py:build", "train:os.system", "train:subprocess", "train:Path", "train:Factory.shutil.rmtree",
     "train:build.__globals__",
     "train:print", "pkg.os:system", "env/lib.py:build", "env.lib:build", "site-packages/theirs.py:build",
     "no_such_module:build", "/etc/passwd.py:x"],
)  # fmt: skip
def test_whatever_else_it_names_is_asked_about(target: str) -> None:
    """Installed code, code outside, links that lead there, and what a module only imports: the remedies are named."""
    with pytest.raises(UsageError, match=r"from-elsewhere\.json names .*--model TARGET, or pass --trust"):
        target_of(target, FILE, "", trust=False)
    assert target_of(target, FILE, "", trust=True) == target
    assert target_of(target, FILE, "train:build", trust=False) == "train:build"


def test_looking_for_a_module_runs_nothing(project: Path) -> None:
    """Neither it nor the packages above it."""
    for name in ("loud/__init__.py", "loud/inner/__init__.py", "loud/inner/mod.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(LOUD)
    assert target_of("loud.inner.mod:build", FILE, "", trust=False)
    assert not (project / "was-run").exists()


@pytest.mark.parametrize("command", ["check", "cross"])
def test_the_commands_ask_before_anything_is_imported(command: str, tmp_path: Path) -> None:
    """One sentence, exit status 2, and the code beside the working directory has not run."""
    (tmp_path / "loud.py").write_text(LOUD)
    folder = tmp_path / "work"
    folder.mkdir()
    write_document(make_result(target=f"{tmp_path}/loud.py:build"), folder / "result.json")
    done = run([command, "result.json"], folder)
    assert done.status == 2
    assert "pass --trust" in " ".join(done.err.split())
    assert not list(tmp_path.rglob("was-run"))
