"""The README's commands and code are run or looked up, so that they cannot drift from what exists."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.main import get_command

import autotune
from autotune.cli import app
from autotune.errors import UsageError
from autotune.sessions.options import Options
from autotune.units import parse_duration
from autotune.workload.target import load_workload
from tests.pages import PAGES, README, ROOT, block, blocks, name_of, text_of
from tests.processes import budget, run

START, COMMANDS = "docs/index.md", "docs/reference/commands.md"
LOOP = "docs/guides/plain-loop.md"
RESULT = "results/my-machine/train-build-cuda.json"


def test_it_is_short() -> None:
    """120 lines at most, and a script is tuned on the first screen; the rest belongs into docs/."""
    lines = text_of(README).splitlines()
    assert len(lines) <= 120
    assert "autotune run -- python train.py" in "\n".join(lines[:15])


def test_the_sample_claims_nothing_that_its_intervals_do_not_hold() -> None:
    """In the output that the README shows, no row reads as a gain whose interval includes 1."""
    shown = block(README, "autotune show", "text")
    ratios = re.findall(r"([\d.]+)× \((?:95 % interval )?([\d.]+) – ([\d.]+)", shown)
    assert ratios
    assert [ratio for ratio, low, high in ratios if float(low) <= 1 <= float(high)] == []


def test_the_picture_is_the_card_of_the_sample() -> None:
    """Picture and output show one result."""
    (shown,) = re.findall(r"confirmed speed-up: ([\d.]+×)", block(README, "autotune show", "text"))
    assert f">{shown} " in text_of("docs/pictures/card.svg")


def test_there_are_two_commands_and_they_name_what_exists() -> None:
    """The main job installs an extra that exists and tunes a target that loads; the other runs the tests."""
    commands = [line for text in blocks(README, "sh") for line in text.strip().splitlines()]
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
    script = text_of(".ci/run")
    assert "README.md" in script
    assert "pip install" not in script


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_that_is_named_exists(page: Path) -> None:
    """An option in a page is an option of autotune or of a benchmark; those of pip and others are named here."""
    group = get_command(app)
    known = {option for parameter in group.params for option in parameter.opts}
    known |= {option for command in group.commands.values() for p in command.params for option in p.opts}  # type: ignore[attr-defined]
    others = {
        "--help",
        "--shm-size",
        "--time",
        "--cpus-per-task",
        "--gres",
        "--signal",
        "--auto-batch",
        "--epochs",
        "--hf-token",
        "--pad-token",
        "--tokenizer",
        "--data",
        "--extra-index-url",
        "--body-file",
    }
    for benchmark in (ROOT / "benchmarks").glob("*.py"):
        others |= set(re.findall(r"\"(--[a-z][a-z-]+)\"", benchmark.read_text(encoding="utf-8")))
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text_of(page)))
    assert named - others <= known


def test_the_table_of_commands_is_complete() -> None:
    """Every sub-command has its row, and no other has."""
    rows = re.findall(r"^\| `autotune (\w+)", text_of(COMMANDS), flags=re.MULTILINE)
    assert rows == list(dict.fromkeys(rows))
    assert {*rows} == {*get_command(app).commands}  # type: ignore[attr-defined]


def test_the_first_page_has_the_same_example() -> None:
    """What is tuned for one holds for the other."""
    assert block(START, "def build") == block(README, "def build")


@pytest.mark.slow
def test_the_example_loop_trains(tmp_path: Path) -> None:
    """The README's build() is tuned as it stands; the guide's loop and the README's lines train with the result."""
    build, loop, lines = block(README, "def build"), block(LOOP, "tuned.accumulate"), block(README, "autotune.load")
    (tmp_path / "train.py").write_text(build)
    out = tmp_path / RESULT
    assert run(["--model", "train:build", "--budget", budget(12), "--quiet", "--out", str(out)], tmp_path).status == 0
    names: dict[str, object] = {}
    exec(compile(build, "train.py", "exec"), names)  # noqa: S102 - the README's own code
    workload = names["build"]()  # type: ignore[operator]
    used = {
        "autotune": autotune,
        "dataset": workload.dataset,
        "model": workload.model,
        "optimizer": workload.make_optimizer(),
        "loss_fn": workload.loss,
    }
    before = [parameter.clone() for parameter in workload.model.parameters()]
    exec(compile(lines.replace(RESULT, str(out)), "README.md", "exec"), dict(used))  # noqa: S102
    exec(compile(loop.replace(RESULT, str(out)), LOOP, "exec"), used)  # noqa: S102
    after = list(workload.model.parameters())
    assert any(not bool((old == new).all()) for old, new in zip(before, after, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_page_runs(tmp_path: Path) -> None:
    """Its commands run in their order, with a shorter training and shorter budgets; pip's files and extras exist."""
    install, *commands = [line for text in blocks(START, "bash") for line in text.splitlines()]
    assert (ROOT / shlex.split(install)[shlex.split(install).index("-c") + 1]).is_file()
    (tmp_path / "train.py").write_text(block(START, "load_digits").replace("range(20)", "range(2)"))
    (tmp_path / "workload.py").write_text(block(START, "def build"))
    for command in commands:
        words = shlex.split(command.replace("2m", budget(20)).replace("5m", budget(12)))
        arguments = [sys.executable if word == "python" else word for word in words]
        if arguments[0] != "autotune":
            subprocess.run(arguments, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
            continue
        done = run(arguments[1:], tmp_path, 280)
        assert done.status == 0, f"{command}\n{done.out}\n{done.err}"
        if arguments[1] == "run":  # whatever was faster in so short a time, there is something to train with
            result = json.loads((tmp_path / "train.json").read_text())
            result["best"]["config"] |= {"optimizer_impl": "fused"}
            (tmp_path / "train.json").write_text(json.dumps(result))


@pytest.mark.parametrize("field", ["target", "budget_seconds", "effective_batch", "pinned", "explored"])
def test_options_reach_the_tuning(field: str) -> None:
    """What the command line parses has a place in the tuning's options."""
    assert field in Options.model_fields


def test_errors_have_the_statuses_of_the_reference() -> None:
    """Usage ends with 2, as the page of the commands says."""
    assert "2 usage" in text_of(COMMANDS)
    assert UsageError.exit_status == 2
    assert autotune.AutotuneError.exit_status == 1


def anchors(page: Path) -> set[str]:
    """The names that a page's headings give to links."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "results/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    """Links of a page outside of the site name a file and one of its headings; the site's build looks at the others."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#([^)]+))?\)", text_of(page))
    assert links
    folder = (ROOT / page).parent
    assert [name for name, _ in links if not (folder / name).exists()] == []
    assert [f"{name}#{anchor}" for name, anchor in links if anchor and anchor not in anchors(folder / name)] == []


LINKS = sorted({link for page in PAGES for link in re.findall(r"https?://[^)>\s`\"']+", text_of(page))})


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
def test_pages_of_others_are_there(link: str) -> None:
    """A link into the web is answered; without a network there is nothing to ask."""
    request = urllib.request.Request(link, method="HEAD", headers={"User-Agent": "Mozilla/5.0"})  # noqa: S310 - a page
    try:
        status = urllib.request.urlopen(request, timeout=20).status  # noqa: S310 - that the documentation links to
    except urllib.error.HTTPError as error:
        status = error.code
    except OSError as error:
        pytest.skip(f"no network: {error}")
    assert status not in {404, 410}
