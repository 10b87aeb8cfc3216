"""The documentation: its parts that come from the code are those of this code, and its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import app
from autotune.results.compare import compare
from autotune.results.compare_formats import to_markdown
from autotune.results.gather import gather
from autotune.sessions.options import Options
from autotune.stored import DeviceKind
from tests.pages import PAGES, README, ROOT, block, blocks, name_of, text_of

EXTENDING = "docs/architecture/extending.md"
MOST_WORDS = 80
MOST_FOLDERS = 5


def paragraphs(page: Path) -> list[str]:
    """The running text of a page: no code, no tables, each item of a list by itself."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    return [part for part in parts if not part.lstrip().startswith(("|", "<!--"))]


def files_of(tree: str) -> set[str]:
    """The paths in an indented tree, from its root; what is indented deeper than any name is a comment that goes on."""
    found, folders = set(), []
    for line in tree.strip().splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        if depth > MOST_FOLDERS:
            continue
        folders = [*folders[:depth], name]
        if not name.endswith("/"):
            found.add("".join(folders))
    return found


def test_what_is_made_is_up_to_date() -> None:
    """Tables of knobs, commands, result fields, files and figures are those that the script makes now."""
    command = [sys.executable, str(ROOT / "docs/_scripts/made.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_of_results_is_up_to_date(tmp_path: Path) -> None:
    """`autotune compare results/ --out results/README.md` makes it, where no result of your own is added."""
    subprocess.run(["git", "checkout-index", f"--prefix={tmp_path}/", "-a"], cwd=ROOT, check=True)
    folder = tmp_path / "results"
    assert to_markdown(compare(gather([folder])), folder) == (folder / "README.md").read_text(encoding="utf-8")


def test_the_tree_names_every_file_by_its_path() -> None:
    """Every Python file of the package stands in the tree, in its own folder, and nothing else does."""
    existing = {str(path.relative_to(ROOT)) for path in (ROOT / "autotune").rglob("*.py")}
    tree = block("docs/architecture/files.md", "cli.py", "text").partition("\nbenchmarks/")[0]
    assert files_of(tree) == {path for path in existing if not path.endswith("__init__.py")}


def test_the_picture_and_the_table_show_every_room() -> None:
    """The rooms are the folders of the package, in the picture and in the table below it."""
    rooms = {path.parent.name for path in (ROOT / "autotune").glob("*/__init__.py")}
    picture = {*re.findall(r'font-weight="600"[^>]*>(\w+)</text>', text_of("docs/architecture/rooms.svg"))}
    table = {*re.findall(r"^\| `(\w+)/` \|", text_of("docs/architecture/index.md"), flags=re.MULTILINE)}
    assert picture == table == rooms


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paragraphs_are_short(page: Path) -> None:
    """Nobody reads more than 80 words in a row."""
    assert [part for part in paragraphs(page) if len(part.split()) > MOST_WORDS] == []


def test_the_guide_of_scripts_names_the_file_that_run_writes() -> None:
    """By the script and the device."""
    name = Options(target="", script=("python", "train.py")).name
    named = set(re.findall(r"results/[\w-]+/([\w.-]+\.json)", text_of("docs/guides/scripts.md")))
    assert named
    assert named <= {f"{name}-{device}.json" for device in get_args(DeviceKind)}


def test_the_benchmarks_are_short() -> None:
    """2,500 words at most, tables included: nobody reads more to find a figure."""
    assert len(text_of("docs/benchmarks.md").split()) <= 2500


@pytest.mark.parametrize("page", [path for path in PAGES if path != README], ids=name_of)
def test_every_page_is_in_the_navigation(page: Path) -> None:
    """A page that is not in it is found by nobody."""
    assert f" {page.relative_to(ROOT / 'docs')}\n" in text_of("mkdocs.yml")


def test_the_examples_of_knobs_are_the_code() -> None:
    """What the diffs add stands in the files that the page names, and what they remove stands in none."""
    code = "".join(text_of(f"autotune/knobs/{name}.py") for name in ("config", "loader", "ranks"))
    lines = [line for diff in blocks(EXTENDING, "diff") for line in diff.splitlines()]
    assert {line[0] for line in lines} == {"+", "-"}
    assert [line for line in lines if (f"{line[1:]}\n" in code) != line.startswith("+")] == []
    named = [path.name for path in (ROOT / "autotune").rglob("*.py") if "batched_grad_copy" in path.read_text()]
    assert sorted(named) == ["config.py", "ranks.py"]


def test_the_example_of_a_sub_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two snippets are all that a command takes."""
    module = type(sys)("autotune.commands.versions")
    exec(compile(block(EXTENDING, "@reported"), "versions.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, module.__name__, module)
    extended = typer.Typer()
    extended.add_typer(app)
    exec(compile(block(EXTENDING, "app.command"), "cli.py", "exec"), {"app": extended})  # noqa: S102
    result = next((ROOT / "results").rglob("*-build.json"))
    printed = CliRunner().invoke(extended, ["versions", str(result)])
    assert printed.exit_code == 0, printed.output
    assert re.search(r"^torch 2\.", printed.stdout, flags=re.MULTILINE)


def test_no_page_names_a_place_of_one_machine() -> None:
    """Absolute paths mean nothing to a reader, but for the system's own."""
    found = {page: re.findall(r"(?<![\w.~/>])/(?:home|root|work|tmp|Users)/[\w/]*", text_of(page)) for page in PAGES}
    assert [page for page, paths in found.items() if paths] == []
