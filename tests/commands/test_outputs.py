"""What a command may write over: own files of the same kind; and how default names keep results apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.doctor.examination import examine_quickly
from autotune.doctor.findings import Examination
from autotune.errors import ResultFileError
from autotune.hardware import probe_host
from autotune.report import write_report
from autotune.results.cross_file import default_cross_path
from autotune.results.files import write_document
from autotune.search.storage import open_journal
from autotune.sessions.options import Options
from autotune.sessions.outputs import BESIDE, PAGE, RESULT, require_replaceable, require_result_place
from tests.crosses import make_cross
from tests.factories import make_result
from tests.inside import run_inside

SOURCE = "import torch\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a result, a cross file, and files of its own."""
    monkeypatch.chdir(tmp_path)
    write_document(make_result(), tmp_path / "result.json")
    write_document(make_cross(), tmp_path / "cross.json")
    for name in ("train.py", "own.json", "own.md", "own.csv", "own.html", "own.svg", "own.png", "lone.diff"):
        (tmp_path / name).write_text(SOURCE)
    return tmp_path


def test_what_is_to_be_copied_stands_on_one_line(folder: Path) -> None:
    """A break at the terminal's width would end a path or a command."""
    (long := folder / f"{'a' * 90}.json").write_bytes((folder / "result.json").read_bytes())
    lines = run_inside(["show", long.name], folder).out.splitlines()
    assert f"result file: {long.name}" in lines
    assert f'    tuned = autotune.load("{long.name}")' in lines


def test_two_results_never_share_a_page(folder: Path) -> None:
    """The second would replace the first."""
    for name in ("run.v1", "run.v2"):
        (folder / name).write_bytes((folder / "result.json").read_bytes())
    done = run_inside(["report", "run.v1", "run.v2"], folder)
    assert (done.status, "expected one file for run.html" in " ".join(done.err.split())) == (2, True)
    assert not (folder / "run.html").exists()


def test_stdout_holds_one_format(folder: Path) -> None:
    """Another program reads it."""
    done = run_inside(["check", "result.json", "--json", "--markdown"], folder)
    assert (done.status, done.out) == (2, "")


@pytest.mark.parametrize("place", ["own.page", "new.v2", "new"])
def test_a_result_has_the_ending_json(place: str, folder: Path) -> None:
    """Else run.v1 and run.v2 would share run.html and run.diff, and own.page would write own.html."""
    done = run_inside(["--model", "train:build", "--out", place], folder)
    assert (done.status, f"such as {place.partition('.')[0]}.json, got {place}" in " ".join(done.err.split())) == (
        2,
        True,
    )


def test_a_comparison_is_no_result_that_was_left_out(folder: Path) -> None:
    """It may stand in the folder that it compares."""
    arguments = ["compare", ".", "--out", "all.json"]
    assert [run_inside(arguments, folder).status for _ in range(2)] == [0, 0]
    assert "all.json" not in (folder / "all.json").read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "train:build", "--out", "train.py"],
        ["--model", "train:build", "--out", "own.json"],
        ["--model", "train:build", "--out", "cross.json"],
        ["--model", "train:build", "--out", "lone.json"],
        ["run", "--out", "train.py", "--", "python3", "train.py"],
        ["run", "--dry-run", "--out", "train.py", "--", "python3", "train.py"],
        ["cross", "result.json", "--model", "train:build", "--out", "train.py"],
        ["cross", "result.json", "--model", "train:build", "--out", "result.json"],
        ["compare", "result.json", "--format", "md", "--out", "train.py"],
        ["compare", "result.json", "--out", "own.md"],
        ["compare", "result.json", "--out", "own.csv"],
        ["compare", "result.json", "--out", "own.html"],
        ["compare", "result.json", "--out", "result.json"],
    ],
)
def test_a_file_of_another_kind_is_never_replaced(arguments: list[str], folder: Path) -> None:
    """A sentence says what was expected and what to do, and nothing has run."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = run_inside(arguments, folder)
    told = " ".join(done.err.split())
    assert done.status == 2
    assert told.startswith("error: --out: expected")
    assert "choose another name, or move that file away" in told
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_another_file_stays_where_a_partial_result_would_go(folder: Path) -> None:
    """That result may be written at the end of hours."""
    (folder / "result-partial.json").write_text(SOURCE)
    done = run_inside(["train", "--out", "result.json", "--", "python3", "train.py"], folder)
    assert (done.status, (folder / "result-partial.json").read_text()) == (2, SOURCE)
    assert "result-partial.json is neither" in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("place", "words"),
    [("/dev/null", "--out: expected a new file"), (".", "is a folder"), ("a" * 300, "cannot be read: File name too")],
)
def test_what_is_no_regular_file_is_never_replaced(place: str, words: str, folder: Path) -> None:
    """A device would be a file afterwards."""
    done = run_inside(["--model", "train:build", "--out", place], folder)
    assert done.status == 2
    assert words in " ".join(done.err.split())


def test_a_page_of_someone_elses_is_kept(folder: Path) -> None:
    """`report` names its page by the result; the card that names no file does too."""
    for name in ("result.html", "result.svg"):
        (folder / name).write_text(SOURCE)
    for command in ("report", "card"):
        done = run_inside([command, "result.json"], folder)
        assert done.status == 2
        assert "move that file away" in " ".join(done.err.split())
    assert {(folder / name).read_text() for name in ("result.html", "result.svg")} == {SOURCE}


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "result.json", "--out", "all.md"], ["compare", "result.json", "--out", "all.csv"],
        ["compare", "result.json", "--out", "all.json"], ["compare", "result.json", "--out", "all.html"],
        ["card", "result.json", "--svg", "card.svg"], ["card", "result.json", "--png", "card.png"],
        ["report", "result.json"],
    ],
)  # fmt: skip
def test_an_own_file_is_replaced(arguments: list[str], folder: Path) -> None:
    """The same command may run twice; an empty file holds nothing to lose."""
    (folder / "all.md").touch()
    for _ in range(2):
        assert run_inside(arguments, folder).status == 0


def test_a_result_and_all_beside_it_may_be_replaced(folder: Path) -> None:
    """The page, the journal and the diff of a result that is there are its own."""
    result = folder / "result.json"
    write_report(make_result(), result)
    open_journal(folder / "result.journal")
    (folder / "result.live.jsonl").write_text('{"event": "started"')
    (folder / "result.diff").write_text("--- a\n+++ b\n")
    assert all(result.with_suffix(ending).exists() for ending in BESIDE)
    require_result_place(result)
    require_replaceable("--out", result, RESULT)
    require_replaceable("--out", folder / "result.html", PAGE)


CROSS = ["cross", "result.json", "--model", "train:build"]


@pytest.mark.parametrize(("place", "why"), [("train.py/cross.json", "Not a directory"), ("/proc/cross.json", "")])
def test_a_cross_measures_nothing_where_it_cannot_write(
    place: str, why: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option that names another folder is told at once; root may write to /proc, which takes no file."""
    monkeypatch.setattr("autotune.sessions.crossing.cross_result", pytest.fail)
    done = run_inside([*CROSS, "--out", place], folder)
    assert done.status == 2
    told = " ".join(done.err.split())
    assert "--out: expected a folder that can be written to" in told
    assert why in told


@pytest.mark.parametrize("is_full", [False, True])
def test_a_cross_names_its_file_once_it_is_written(
    is_full: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk hides no figure, and no file is named that is not there."""

    def full(*_: object) -> None:
        raise ResultFileError("the cross file could not be written")

    monkeypatch.setattr("autotune.sessions.crossing.cross_result", lambda *_, **__: make_cross())
    if is_full:
        monkeypatch.setattr("autotune.results.files.write_document", full)
    done = run_inside([*CROSS, "--out", "new.json"], folder)
    told = " ".join(done.err.split())
    assert "here it reaches 0.830×" in told
    assert (done.status, "cross file: new.json, which" in told) == ((2, False) if is_full else (0, True))
    assert (folder / "new.json").exists() is not is_full


def test_an_examination_takes_only_the_place_of_one(folder: Path) -> None:
    """Before anything is examined."""
    (folder / "doctor-cpu.json").write_text(SOURCE)
    done = run_inside(["doctor", "--device", "cpu", "--out", "doctor-cpu.json"], folder)
    assert done.status == 2
    assert "an examination of autotune to replace" in " ".join(done.err.split())


def test_a_second_examination_replaces_the_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what gathers results passes over it, but says what it is where a person names it."""
    monkeypatch.setattr("autotune.doctor.examination.CHECKS", ())
    place = folder / "kept" / "doctor.json"
    examine_quickly(probe_host(), "cpu").model_copy(update={"findings": ()}).write(place)
    first = place.read_bytes()
    assert run_inside(["doctor", "--device", "cpu", "--out", "kept/doctor.json", "--quiet"], folder).status == 0
    assert place.read_bytes() != first
    assert Examination.model_validate_json(place.read_text()).schema_ == "autotune.doctor/1"
    write_document(make_result(), folder / "kept" / "result.json")
    compared = run_inside(["compare", "kept"], folder)
    assert (compared.status, "doctor" in compared.out + compared.err) == (0, False)
    shown = run_inside(["compare", str(place)], folder)
    assert shown.status == 2
    assert "is not a result file of autotune, but another of its files" in " ".join(shown.err.split())


def name(**fields: object) -> Callable[[], str]:
    """The name of a tuning's files; it depends on the working directory when it is called."""
    return lambda: Options.parse({}, **{"target": "", **fields}).name


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (name(target="a.mod:build"), name(target="b.mod:build")),
        (name(target="a/train.py:build"), name(target="b/train.py:build")),
        (name(script=("python", "a/train.py")), name(script=("python", "b/train.py"))),
        (name(script=("python", "a/train.py")), name(script=("python", "train.py"))),
        (name(script=("python", "-m", "a.train")), name(script=("python", "-m", "b.train"))),
        (name(script=("torchrun", "a/train.py")), name(script=("torchrun", "b/train.py"))),
        (name(script=("python", "/x/train.py")), name(script=("python", "/y/train.py"))),
        (name(target="a_b:build"), name(target="a.b:build")),
        (name(target="a-b/c.py:build"), name(target="a/b-c.py:build")),
        (name(target="cpu/train.py:build"), name(target="train.py:build")),
        (name(target="größe:build"), name(target="grüße:build")),
        (name(target=f"{'a' * 90}:one"), name(target=f"{'a' * 90}:two")),
    ],
)
def test_other_paths_have_other_names(one: Callable[[], str], other: Callable[[], str], folder: Path) -> None:
    """Folders, packages and what is cut off or has no place in a file's name count."""
    assert one() != other()
    assert all(
        set(each()) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") for each in (one, other)
    )


def test_names_are_short_where_they_can_be(folder: Path) -> None:
    """A script's by its path from here, a model's by its target."""
    assert Options(target="train:build").name == "train-build"
    assert Options(target="", script=("python", str(folder / "a" / "train.py"))).name == "a-train"


def test_a_cross_file_has_the_device_in_its_name() -> None:
    """Else a cross on the CPU would replace that on the GPU."""
    assert "-cpu-from-" in default_cross_path(make_cross()).name
