"""What a file may have run: code of the working directory that it defines itself, and no other."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.results.files import write_document
from autotune.results.result import ScriptRecord, SourceRecord, WorkloadRecord
from autotune.scripts import Script
from autotune.sessions.trust import allowing, target_of, trained_by
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
PYTHON = sys.executable


def workload(*command: str) -> WorkloadRecord:
    """A script's record, as a stranger's file may have it."""
    source = SourceRecord(main=None, folder=".", argv=command[1:])
    script = ScriptRecord(command=command, loop={}, source=source)
    return WorkloadRecord(target="x", name="x", samples=None, fingerprint="f", script=script)


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
    """By module or by path; the import reports what is not there at all."""
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


@pytest.mark.parametrize(
    "command",
    [
        (PYTHON, "train.py"), (PYTHON, "train.py", "--lr", "0.1"), (PYTHON, "-u", "-B", "plain/deep/mod.py"),
        (PYTHON, "pkg/../train.py"), (PYTHON, "-m", "pkg.mod"), (PYTHON, "-m", "train"), (PYTHON, "-m", "runs"),
        ("python", "train.py"), ("python3", "train.py"),
    ],
)  # fmt: skip
def test_a_file_may_name_this_python_and_an_own_script(
    command: tuple[str, ...], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script or a module below the working directory, with any arguments; PATH decides which program a name is."""
    (project / "runs").mkdir()
    for name in ("__init__.py", "__main__.py"):
        (project / "runs" / name).write_text(OWN)
    named_alike(project, monkeypatch, PYTHON)
    if command[0] != PYTHON:
        monkeypatch.setattr(sys, "executable", str(project / "bin" / "python"))
    assert trained_by(workload(*command), FILE, model="", command=(), trust=False) == Script(command)


@pytest.mark.parametrize(
    "command",
    [
        (PYTHON, "-c", "import os"), (PYTHON, "../outside.py"), (PYTHON, "link.py"), (PYTHON, "no_such.py"),
        (PYTHON, "-m", "outside"), (PYTHON, "-m", "link"), (PYTHON, "-m", "json.tool"), (PYTHON, "-m", "linked"),
        (PYTHON, "-m", "torch.distributed.run", "train.py"), (PYTHON, "-m"), (PYTHON, "-i", "train.py"), (PYTHON,),
        (PYTHON, "-Wd::train.X", "train.py"), (PYTHON, "-X", "importtime", "train.py"), (PYTHON, "env/lib.py"),
        (PYTHON, "site-packages/theirs.py"), (PYTHON, "pkg"), (PYTHON, "-"), ("env", "A=1", PYTHON, "train.py"),
        ("sh", "-c", "python train.py"), ("./python", "train.py"), ("python-of-theirs", "train.py"),
    ],
)  # fmt: skip
def test_any_other_command_of_a_file_is_asked_about(
    command: tuple[str, ...], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program, code on the command line, code outside, links that lead there: only with --trust."""
    (project / "linked").mkdir()
    (project / "linked" / "__init__.py").write_text("")
    (project / "linked" / "__main__.py").symlink_to(project.parent / "outside.py")
    named_alike(project, monkeypatch, "/bin/sh")
    with pytest.raises(UsageError, match=r"names the command .*pass --trust"):
        trained_by(workload(*command), FILE, model="", command=(), trust=False)
    assert trained_by(workload(*command), FILE, model="", command=(), trust=True) == Script(command)


def named_alike(project: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Has PATH lead from the names of Python to a program, by links in a folder of their own."""
    folder = project / "bin"
    folder.mkdir()
    for name in ("python", "python3", "python-of-theirs"):
        (folder / name).symlink_to(program)
    (project / "python").symlink_to(program)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_the_python_of_another_environment_is_asked_about(project: Path) -> None:
    """It is the same program by its links, and imports other packages."""
    other = project / "other" / "bin"
    other.mkdir(parents=True)
    (other / "python").symlink_to(sys.executable)
    with pytest.raises(UsageError, match="pass --trust"):
        trained_by(workload(str(other / "python"), "train.py"), FILE, model="", command=(), trust=False)


def test_a_command_whose_secret_is_hidden_is_not_run() -> None:
    """Not even with --trust: the sentence says to pass the command again, and then that one runs."""
    hidden = workload(PYTHON, "train.py", "--hf-token", "abc")
    with pytest.raises(UsageError, match=r"--hf-token '\*\*\*', in which .* pass the command with its secret after --"):
        trained_by(hidden, FILE, model="", command=(), trust=True)
    typed = (PYTHON, "train.py", "--hf-token", "abc")
    assert trained_by(hidden, FILE, model="", command=typed, trust=False) == Script(typed)
    with pytest.raises(UsageError, match="has hidden a secret"):
        Script.of(hidden.script.command if hidden.script is not None else ())


def test_a_command_for_a_target_is_refused() -> None:
    """A result of a build() is trained by a target."""
    record = WorkloadRecord(target="train:build", name="x", samples=None, fingerprint="f")
    with pytest.raises(UsageError, match="expected --model alone, or a command for a result of a script"):
        trained_by(record, FILE, model="", command=(PYTHON, "train.py"), trust=False)


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


@pytest.mark.parametrize(
    ("given", "name"), [({"writable": [Path()]}, "--writable"), ({"any_network": True}, "--network")]
)
def test_a_build_takes_no_permission_of_scripts(given: dict[str, Any], name: str) -> None:
    """It needs none, and a user who passes one believes in a protection that is not there."""
    allowed = {"writable": [], "any_network": False}
    assert allowing("train:build", **allowed) == "train:build"
    with pytest.raises(UsageError, match=f"{name} is for scripts: nothing keeps a build"):
        allowing("train:build", **{**allowed, **given})
