"""The README's commands and code are run or looked up, so that they cannot drift from what exists."""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

import autotune
from autotune.cli import app
from autotune.commands.tuning import Options
from autotune.errors import UsageError
from autotune.units import parse_duration
from autotune.workload.target import load_workload
from tests.processes import budget, run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


def test_there_are_two_commands_and_they_name_what_exists() -> None:
    """The main job installs an extra that exists and tunes a target that loads; the other runs the tests."""
    commands = [line for block in blocks("sh") for line in block.strip().splitlines()]
    assert len(commands) == 2
    setup, install, probe, main_job = commands[0].split(" && ")
    assert setup == "python3 -m venv .venv"
    assert shlex.split(probe)[1:] == ["probe"]
    words = shlex.split(install)
    assert (ROOT / words[words.index("-c") + 1]).is_file()
    extra = re.fullmatch(r"\.\[(\w+)\]", words[-1])
    project = importlib.metadata.distribution("autotune-torch")
    assert extra is not None
    assert extra[1] in (project.metadata.get_all("Provides-Extra") or ())
    command, *arguments = shlex.split(main_job)
    assert Path(command).name in {script.name for script in project.entry_points}
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert parse_duration(options["--budget"]) == 60
    assert len(load_workload(options["--model"]).dataset) > 1000  # type: ignore[arg-type]
    assert shlex.split(commands[1])[1:] == ["-m", "pytest"]


def test_ci_runs_the_two_commands_from_the_readme() -> None:
    """CI has no commands of its own for what a person is told to type."""
    script = (ROOT / ".ci" / "run").read_text()
    assert "README.md" in script
    assert "pip install" not in script


def test_every_option_that_is_named_exists() -> None:
    """An option in the README is an option of the command."""
    group = get_command(app)
    known = {option for parameter in group.params for option in parameter.opts}
    known |= {option for command in group.commands.values() for p in command.params for option in p.opts}  # type: ignore[attr-defined]
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", README)) - {"--help"}
    assert named <= known


@pytest.mark.slow
def test_the_example_build_trains(tmp_path: Path) -> None:
    """The README's own build() is tuned as it stands."""
    example = next(block for block in blocks("python") if "def build" in block)
    (tmp_path / "train.py").write_text(example)
    finished = run(["--model", "train:build", "--budget", budget(8), "--quiet"], tmp_path)
    assert finished.status == 0, finished.err


@pytest.mark.slow
def test_the_example_loop_trains(tmp_path: Path) -> None:
    """The README's training loop runs as it stands, with a result that was measured here."""
    build = next(block for block in blocks("python") if "def build" in block)
    loop = next(block for block in blocks("python") if "tuned.accumulate" in block)
    (tmp_path / "train.py").write_text(build)
    out = tmp_path / "results/my-machine/train-build.json"
    assert run(["--model", "train:build", "--budget", budget(8), "--quiet", "--out", str(out)], tmp_path).status == 0
    names: dict[str, object] = {}
    exec(compile(build, "train.py", "exec"), names)  # noqa: S102 - the README's own code
    workload = names["build"]()  # type: ignore[operator]
    used = {
        "dataset": workload.dataset,
        "model": workload.model,
        "optimizer": workload.make_optimizer(),
        "loss_fn": workload.loss,
    }
    before = [parameter.clone() for parameter in workload.model.parameters()]
    exec(compile(loop.replace("results/my-machine/train-build.json", str(out)), "loop.py", "exec"), used)  # noqa: S102
    after = list(workload.model.parameters())
    assert any(not bool((old == new).all()) for old, new in zip(before, after, strict=True))


def test_the_file_tree_names_files_that_exist() -> None:
    """Every Python file of the package stands in the README's tree, and nothing else does."""
    tree = next(block for block in blocks("") if "cli.py" in block)
    package = tree.split("benchmarks/")[0]
    named = set(re.findall(r"(\w+\.py)\b", package))
    existing = {path.name for path in (ROOT / "autotune").rglob("*.py")} - {"__main__.py"}
    assert named == existing


@pytest.mark.parametrize("field", ["target", "budget_seconds", "effective_batch", "pinned", "explored"])
def test_options_reach_the_tuning(field: str) -> None:
    """What the command line parses has a place in the tuning's options."""
    assert field in Options.__dataclass_fields__


def test_errors_have_the_statuses_of_the_readme() -> None:
    """Usage ends with 2, as the README says."""
    assert "2 usage" in README
    assert UsageError.exit_status == 2
    assert autotune.AutotuneError.exit_status == 1


@pytest.mark.parametrize("page", ["README.md", "results/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of a page names a file that is there."""
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (folder / link).exists()] == []
