"""The hosted workflows: what they run exists here, `.ci/run` runs it too, and they agree with the project's files.

What only a hosted runner has is not tried: its systems, its actions, and publishing.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pages import ROOT, text_of

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = text_of("pyproject.toml")
TOOLS = Path(sys.executable).parent


def jobs() -> dict[str, Any]:
    """The jobs of all workflows, by their names."""
    return {name: job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()}


def commands() -> list[str]:
    """The commands of all steps, each once."""
    steps = [step for job in jobs().values() for step in job["steps"]]
    return list(dict.fromkeys(step["run"] for step in steps if "run" in step))


def matrix() -> list[dict[str, str]]:
    """What the tests run on."""
    return jobs()["tests"]["strategy"]["matrix"]["include"]  # type: ignore[no-any-return]


def constraint(package: str) -> tuple[int, ...]:
    """The version that the constraints pin."""
    return version(re.search(rf"^{package}==(\S+)", text_of("constraints.txt"), re.MULTILINE)[1])  # type: ignore[index]


def version(text: str) -> tuple[int, ...]:
    """A version as numbers."""
    return tuple(map(int, text.split(".")))


def test_there_are_three_systems_and_every_python() -> None:
    """Linux runs each Python of the project's classifiers; macOS and Windows the first and the last."""
    pythons = re.findall(r"Python :: (3\.\d+)", PROJECT)
    assert pythons[0] == re.search(r'requires-python = ">=(.+)"', PROJECT)[1]  # type: ignore[index]
    rows = {
        system: [row["python"] for row in matrix() if row["system"] == system]
        for system in ("ubuntu", "macos", "windows")
    }
    assert list(dict.fromkeys(rows["ubuntu"])) == pythons
    assert rows["macos"] == rows["windows"] == [pythons[0], pythons[-1]]


def test_there_are_the_oldest_torch_the_pinned_and_a_newer() -> None:
    """The oldest is the one that the project's metadata allow."""
    oldest, newest = (version(row["torch"]) for row in matrix() if "torch" in row)
    assert oldest[:2] == version(re.search(r'"torch>=(.+)"', PROJECT)[1])  # type: ignore[index]
    assert oldest < constraint("torch") < newest
    assert any(row["python"] == "3.11" and row.get("pins") == "-c constraints.txt" for row in matrix())


@pytest.mark.parametrize("command", commands())
def test_a_step_runs_what_exists(command: str) -> None:
    """Its programs, modules, files and extras do; a row's own words are left out."""
    plain = re.sub(r"\$\{\{.*?\}\}", "", command)
    for part in plain.split("||"):
        words = shlex.split(part)
        program = (
            ROOT / words[0] if words[0].startswith(".ci/") else shutil.which(words[0], path=f"{TOOLS}:{os.defpath}")
        )
        assert os.access(program or "", os.X_OK), words[0]
        if words[1:2] == ["-m"]:
            assert importlib.util.find_spec(words[2]) is not None
        assert all((ROOT / words[at + 1]).is_file() for at, word in enumerate(words) if word == "-c")
        for extra in re.findall(r"\.\[(\w+)\]", part):
            assert re.search(rf"^{extra} = \[", PROJECT, re.MULTILINE)


def test_what_ci_runs_here_is_run_there() -> None:
    """Each check of `.ci/run` has its step, but the slow tests, which take a machine for half an hour."""
    here = [line.removeprefix(".venv/bin/").strip() for line in text_of(".ci/run").splitlines()]
    checks = [line for line in here if line.startswith(("ruff", "mypy", "lint-imports", "mkdocs", ".ci/"))]
    there = [command.replace(".ci/wheel python", ".ci/wheel .venv/bin/python") for command in commands()]
    assert len(checks) == 6
    assert [check for check in checks if check not in there] == []
    assert any(command.startswith("python -m pytest ") for command in there)


def test_only_a_tag_that_fits_is_published(tmp_path: Path) -> None:
    """It needs the project's version, a heading in the changelog, and the repository's URL, which is one setting."""
    (tmp_path / ".ci").mkdir()
    shutil.copy2(ROOT / ".ci/tag", tmp_path / ".ci/tag")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")

    def answer_to(tag: str) -> str:
        ended = subprocess.run([tmp_path / ".ci/tag", tag], capture_output=True, text=True)
        assert (ended.returncode == 0) == ("may be published" in ended.stdout), ended.stderr
        return ended.stdout

    number = re.search(r'^version = "(.+)"', PROJECT, re.MULTILINE)[1]  # type: ignore[index]
    assert f"expected the tag v{number}" in answer_to("v99.0")
    assert "CHANGELOG.md" in answer_to(f"v{number}")
    (tmp_path / "CHANGELOG.md").write_text(f"## [Unreleased]\n\n## [{number}]\n")
    assert "[project.urls]" in answer_to(f"v{number}")
    filled = re.sub(
        r"^# \[project\.urls\]\n# Repository = .*$",
        '[project.urls]\nRepository = "https://example.org/a"',
        PROJECT,
        flags=re.MULTILINE,
    )
    (tmp_path / "pyproject.toml").write_text(filled)
    assert "may be published" in answer_to(f"v{number}")


def test_publishing_needs_no_secret() -> None:
    """The index trusts the workflow's identity; nothing else has that right."""
    publish = jobs()["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"] == "pypi"
    assert any(step.get("uses", "").startswith("pypa/gh-action-pypi-publish@") for step in publish["steps"])
    assert "secrets." not in "".join(path.read_text() for path in WORKFLOWS)
