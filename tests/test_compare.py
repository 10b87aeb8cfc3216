"""Result files of several machines: read with patience, grouped by what was trained."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune.compare import Comparison, compare, load_results, machine_name
from autotune.config import TrainConfig
from autotune.hardware.model import Cpu
from autotune.measurement import Interval
from autotune.result import Result, Side, write_result
from tests.factories import make_gpu, make_hardware, make_measurement, make_result


def on_gpu(rate: float, name: str = "NVIDIA GeForce RTX 4070", **changes: Any) -> Result:
    """A result of a GPU that reached a rate."""
    return make_result(
        hardware=make_hardware(make_gpu(name=name)),
        constraints=make_result().constraints.model_copy(update={"device": "cuda"}),
        best=Side(config=TrainConfig(precision="bf16"), measurement=make_measurement(rate)),
        **changes,
    )


def test_files_and_folders_are_read_in_order(tmp_path: Path) -> None:
    """A folder stands for all that lies below it; a file may lie anywhere."""
    for name in ("b/two.json", "a/deep/one.json", "lone.json"):
        write_result(make_result(name=name), tmp_path / name)
    write_result(make_result(name="other"), tmp_path / "c" / "other.json")
    results, problems = load_results([tmp_path / "lone.json", str(tmp_path / "a"), tmp_path / "b"])
    assert [result.workload.name for result in results] == ["lone.json", "a/deep/one.json", "b/two.json"]
    assert problems == []


def test_what_is_named_twice_is_read_once(tmp_path: Path) -> None:
    """A file and the folder that holds it do not make two machines."""
    write_result(make_result(), tmp_path / "one.json")
    results, problems = load_results([tmp_path, tmp_path / "one.json", tmp_path / "." / "one.json"])
    assert (len(results), problems) == (1, [])


def test_files_that_are_none_of_ours_are_told_by_name_and_the_rest_goes_on(tmp_path: Path) -> None:
    """One broken file does not hide the others."""
    write_result(make_result(), tmp_path / "good.json")
    (tmp_path / "foreign.json").write_text('{"name": "package"}')
    (tmp_path / "cut.json").write_text('{"schema": "autotune.result/1", ')
    (tmp_path / "newer.json").write_text('{"schema": "autotune.result/2"}')
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "notes.txt").write_text("not looked at")
    results, problems = load_results([tmp_path, tmp_path / "missing.json"])
    assert len(results) == 1
    assert [Path(problem.split(" ")[0]).name for problem in problems[:3]] == [
        "cut.json",
        "foreign.json",
        "newer.json",
    ]
    assert [problem for problem in problems if "missing.json" in problem] == problems[3:]


def test_folder_without_results_is_told(tmp_path: Path) -> None:
    """A mistyped folder is not silently nothing."""
    results, problems = load_results([tmp_path])
    assert results == []
    assert problems == [f"{tmp_path} holds no result files: no *.json lies in it or below it"]


def test_rows_of_one_workload_stand_together_the_fastest_first() -> None:
    """Machines are compared on what they do best, whatever they are called."""
    results = [on_gpu(1200, "slow"), make_result(name="other", fingerprint="f2"), on_gpu(3000, "fast")]
    comparison = compare(results)
    assert [(group.name, len(group.rows)) for group in comparison.groups] == [("digits", 2), ("other", 1)]
    assert [row.machine for row in comparison.groups[0].rows] == ["fast, 2 CPUs", "slow, 2 CPUs"]


def test_row_holds_before_after_and_what_changed() -> None:
    """All that a table or a script needs, with the intervals."""
    result = make_result(
        baseline=Side(config=TrainConfig(), measurement=make_measurement(1000, spread=0)),
        best=Side(config=TrainConfig(precision="bf16"), measurement=make_measurement(2000, spread=0)),
    )
    (row,) = compare([result]).groups[0].rows
    assert row.before_samples_per_second == pytest.approx(1000)
    assert row.after_ci95 == pytest.approx(Interval(2000, 2000))
    assert row.speedup == result.speedup
    assert row.changed_knobs == {"precision": ("fp32", "bf16")}
    assert (row.hostname, row.device, row.torch, row.status) == ("workstation", "cpu", "2.13.0", "complete")


def test_row_without_a_measurement_has_no_rate_and_comes_last() -> None:
    """What was not measured is null, never 0."""
    unmeasured = make_result(best=Side(config=TrainConfig(), measurement=None), speedup=None)
    rows = compare([unmeasured, make_result()]).groups[0].rows
    assert rows[1].after_samples_per_second is None
    assert rows[1].after_ci95 is None


def test_equal_rates_are_ordered_by_machine_and_time() -> None:
    """The same files give the same table, in whatever order they are named."""
    later = make_result(created=make_result().created + timedelta(days=1))
    assert compare([later, make_result()]) == compare([make_result(), later])


def test_one_target_with_two_fingerprints_is_told() -> None:
    """Two workloads behind one name cannot be compared, and do not share a table."""
    comparison = compare([make_result(), make_result(fingerprint="ffff")])
    assert len(comparison.groups) == 2
    assert "train:build stands for 2 workloads (fingerprints a1b2c3, ffff)" in comparison.warnings[0]


def test_same_workload_under_two_targets_is_one() -> None:
    """`train:build` and `train.py:build` are two spellings of one thing."""
    comparison = compare([make_result(), make_result(target="train.py:build")])
    assert (len(comparison.groups), comparison.warnings) == (1, ())


def test_different_baselines_are_told() -> None:
    """A gain over a slow baseline is not the gain of a fast machine."""
    other = Side(config=TrainConfig(batch_size=64, num_workers=4), measurement=make_measurement(1000))
    (warning,) = compare([make_result(), make_result(baseline=other)]).warnings
    assert warning.startswith("the baselines of digits differ in num_workers, prefetch_factor: ")


def test_machine_is_named_by_what_trained() -> None:
    """A GPU that was not used does not name the row."""
    result = on_gpu(1000)
    on_cpu = result.model_copy(update={"constraints": make_result().constraints})
    one_cpu = make_result(hardware=make_hardware(cpu=Cpu(model=None, physical_cores=1, logical_cores=1, budget=1)))
    assert machine_name(result) == "NVIDIA GeForce RTX 4070, 2 CPUs"
    assert machine_name(on_cpu) == "Intel(R) Xeon(R) Gold 6338, 2 CPUs"
    assert machine_name(one_cpu) == "unnamed CPU, 1 CPU"


def test_comparison_is_json() -> None:
    """`--json` gives the rows, the warnings and the problems as one document."""
    comparison = compare([make_result(), on_gpu(2000, fingerprint="f2")], ["x.json is broken"])
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison
    assert comparison.problems == ("x.json is broken",)
