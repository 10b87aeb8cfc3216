"""Result files gathered from files and folders: with patience, each once, and what gives none is told by name."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

from autotune.results.files import write_document
from autotune.results.gather import gather
from tests.crosses import make_cross, on_gpu
from tests.factories import make_result


def test_files_and_folders_are_read_in_order(tmp_path: Path) -> None:
    """A folder stands for all that lies below it; a file may lie anywhere."""
    for number, name in enumerate(("b/two.json", "a/deep/one.json", "lone.json")):
        result = make_result(name=name, created=make_result().created + timedelta(hours=number))
        write_document(result, tmp_path / name)
    write_document(make_result(name="other"), tmp_path / "c" / "other.json")
    found = gather([tmp_path / "lone.json", str(tmp_path / "a"), tmp_path / "b"])
    assert [result.workload.name for _, result in found.results] == ["lone.json", "a/deep/one.json", "b/two.json"]
    assert [Path(path).name for path, _ in found.results] == ["lone.json", "one.json", "two.json"]
    assert (found.problems, found.warnings) == ([], [])


def test_what_is_named_twice_is_read_once(tmp_path: Path) -> None:
    """A file and the folder that holds it do not make two machines, and are nothing to tell."""
    write_document(make_result(), tmp_path / "one.json")
    found = gather([tmp_path, tmp_path / "one.json", tmp_path / "." / "one.json"])
    assert (len(found.results), found.problems, found.warnings) == (1, [], [])


def test_a_copy_is_told_by_both_names_and_counts_once(tmp_path: Path) -> None:
    """A file that was copied into another folder is no second measurement."""
    write_document(make_result(), tmp_path / "a.json")
    shutil.copy(tmp_path / "a.json", tmp_path / "b.json")
    found = gather([tmp_path])
    assert [path for path, _ in found.results] == [str(tmp_path / "a.json")]
    assert found.warnings == [f"{tmp_path / 'a.json'} and {tmp_path / 'b.json'} are one result and count once"]


def test_an_edited_copy_is_told_as_such(tmp_path: Path) -> None:
    """Same machine, workload and time, but another content: somebody has changed one of them."""
    write_document(make_result(), tmp_path / "a.json")
    write_document(make_result(speedup=None), tmp_path / "b.json")
    found = gather([tmp_path])
    assert len(found.results) == 1
    assert "their contents differ: the first is compared" in found.warnings[0]


def test_machines_that_finished_at_the_same_moment_are_two(tmp_path: Path) -> None:
    """The time alone makes no copy."""
    write_document(make_result(), tmp_path / "a.json")
    write_document(on_gpu(), tmp_path / "b.json")
    assert len(gather([tmp_path]).results) == 2


def test_files_that_are_none_of_ours_are_told_by_name_and_the_rest_goes_on(tmp_path: Path) -> None:
    """One broken file does not hide the others."""
    write_document(make_result(), tmp_path / "good.json")
    (tmp_path / "cut.json").write_text('{"schema": "autotune.result/2", ')
    (tmp_path / "foreign.json").write_text('{"name": "package"}')
    (tmp_path / "lacking.json").write_text('{"schema": "autotune.result/2"}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "newer.json").write_text('{"schema": "autotune.result/3"}')
    (tmp_path / "picture.json").write_bytes(b"\x89PNG\r\n\xff")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "notes.txt").write_text("not looked at")
    found = gather([tmp_path, tmp_path / "missing.json"])
    assert len(found.results) == 1
    names = ["cut", "foreign", "lacking", "list", "newer", "picture"]
    assert [Path(problem.split(" ")[0]).stem for problem in found.problems[:6]] == names
    assert ["another autotune" in problem for problem in found.problems].index(True) == names.index("newer")
    assert [problem for problem in found.problems if "missing.json" in problem] == found.problems[6:]


def test_folder_without_results_is_told(tmp_path: Path) -> None:
    """A mistyped folder is not silently nothing."""
    found = gather([tmp_path])
    assert found.results == []
    assert found.problems == [f"{tmp_path} holds no result files: no *.json lies in it or below it"]


def test_crosses_are_told_apart_from_results(tmp_path: Path) -> None:
    """A file of `autotune cross` is no broken result; a broken one is told as what it is."""
    write_document(make_cross(), tmp_path / "cross" / "good.json")
    (tmp_path / "cross" / "newer.json").write_text('{"schema": "autotune.cross/3"}')
    found = gather([tmp_path])
    assert [Path(path).name for path, _ in found.crosses] == ["good.json"]
    (problem,) = found.problems
    assert "newer.json is a cross file of another autotune" in problem


def test_of_crosses_of_one_pair_of_machines_the_newest_counts(tmp_path: Path) -> None:
    """An older one is told by name, and so is a copy."""
    older = make_cross()
    write_document(older, tmp_path / "b-older.json")
    write_document(make_cross(created=older.created + timedelta(hours=1)), tmp_path / "a-newer.json")
    write_document(make_cross(source=on_gpu(name="NVIDIA H200")), tmp_path / "other.json")
    found = gather([tmp_path])
    assert {Path(path).name for path, _ in found.crosses} == {"a-newer.json", "other.json"}
    (warning,) = found.warnings
    assert warning.startswith(f"{tmp_path / 'b-older.json'} is left out: {tmp_path / 'a-newer.json'} ")


def test_what_was_ignored_in_a_file_is_told_with_its_name(tmp_path: Path) -> None:
    """So that a reader knows what the comparison lacks."""
    data = json.loads(make_result().model_dump_json(by_alias=True))
    (tmp_path / "a.json").write_text(json.dumps(data | {"novel": 1}))
    (ignored,) = gather([tmp_path]).warnings
    assert ignored == f"{tmp_path / 'a.json'}: ignored, since this autotune does not know it: novel"
