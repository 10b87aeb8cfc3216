"""The sub-commands as a person uses them: reports, comparisons, another machine's config, the schema."""

from __future__ import annotations

import csv
import functools
import io
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from autotune.hardware import probe_host
from autotune.knobs.config import TrainConfig
from autotune.results.cross_file import Cross
from autotune.results.files import read_document, write_document
from autotune.results.result import Side, read_result
from tests.factories import make_gpu, make_hardware, make_result
from tests.inside import run_inside
from tests.processes import ROOT, budget, run

TINY = "tests.workloads.tiny:build"
RESULTS = sorted((ROOT / "results").rglob("*.json"))


@functools.cache
def schema() -> Draft202012Validator:
    """What the command exports, as a validator."""
    exported = json.loads(run_inside(["schema"], ROOT).out)
    Draft202012Validator.check_schema(exported)
    return Draft202012Validator(exported)


def test_real_results_follow_the_schema() -> None:
    """Those that this repository keeps."""
    files = [
        data for path in RESULTS if (data := json.loads(path.read_text()))["schema"].startswith("autotune.result/")
    ]
    assert files
    for data in files:
        schema().validate(data)


@pytest.mark.parametrize(
    ("field", "value"), [("status", "done"), ("schema", "autotune.result/9"), ("stopped_by", None), ("search", {})]
)
def test_what_is_no_result_breaks_the_schema(field: str, value: object) -> None:
    """An editor shows a person where."""
    data = json.loads(make_result().model_dump_json(by_alias=True))
    assert schema().is_valid(data)
    assert not schema().is_valid({**data, field: value})


def test_a_report_lies_beside_each_result(tmp_path: Path) -> None:
    """And its path is what the command prints."""
    for name in ("a", "b"):
        write_document(make_result(name=name), tmp_path / f"{name}.json")
    done = run_inside(["report", "a.json", "b.json"], tmp_path)
    assert done.status == 0, done.err
    assert done.out.split() == ["a.html", "b.html"]
    assert all("<html" in (tmp_path / name).read_text() for name in done.out.split())


def test_one_broken_file_writes_no_report(tmp_path: Path) -> None:
    """What cannot be read is told before anything is written."""
    write_document(make_result(), tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{")
    done = run_inside(["report", "a.json", "b.json"], tmp_path)
    assert done.status == 2
    assert "b.json is not a result file" in " ".join(done.err.split())
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.slow
def test_a_report_that_cannot_be_written_costs_no_result(tmp_path: Path) -> None:
    """A folder lies in its place by the default name; the result stands, and so does the exit status."""
    place = tmp_path / "results" / probe_host().slug / "tests-workloads-tiny-build-cpu.json"
    place.with_suffix(".html").mkdir(parents=True)
    done = run(["--model", TINY, "--device", "cpu", "--only", "cudnn_benchmark", "--budget", budget(12)], tmp_path)
    assert done.status == 0, done.err
    assert read_result(place).status == "complete"
    assert "the report could not be" in done.err


@pytest.mark.slow
def test_a_result_is_not_named_like_its_page(tmp_path: Path) -> None:
    """The page would take its place: told before anything is measured."""
    done = run_inside(["--model", TINY, "--out", "tiny.html"], tmp_path)
    assert done.status == 2
    assert "tiny.json" in " ".join(done.err.split())


@pytest.fixture
def two_machines(tmp_path: Path) -> Path:
    """A folder with the same workload on a CPU and on a GPU, and a broken file."""
    write_document(make_result(), tmp_path / "cpu" / "train-build.json")
    constraints = make_result().constraints.model_copy(update={"device": "cuda"})
    on_gpu = make_result(hardware=make_hardware(make_gpu()), constraints=constraints)
    write_document(on_gpu, tmp_path / "rtx-4070" / "train-build.json")
    (tmp_path / "broken.json").write_text("[]")
    return tmp_path


def test_comparing_as_csv_gives_a_row_a_result(two_machines: Path) -> None:
    """On stdout, and what was left out on stderr."""
    done = run_inside(["compare", ".", "--format", "csv"], two_machines)
    assert done.status == 0, done.err
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert {row["machine"].partition(",")[0] for row in rows} == {
        "Intel(R) Xeon(R) Gold 6338", "NVIDIA GeForce RTX 4070"
    }  # fmt: skip
    assert "broken.json" in done.err


@pytest.mark.parametrize(
    ("name", "start"), [("all.md", "# tuned by autotune"), ("all.html", "<!doctype html>"), ("a.json", "{")]
)
def test_the_format_follows_the_file(name: str, start: str, two_machines: Path) -> None:
    """And the file is written instead of stdout."""
    done = run_inside(["compare", ".", "--out", name], two_machines)
    assert done.status == 0, done.err
    assert not done.out
    assert (two_machines / name).read_text().lower().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "xml"], "--format: expected one of table, md, csv, json, html, got 'xml'"),
        (["--out", "all.txt"], "--out: expected a file that ends in .md, .csv, .json or .html"),
        (["--out", "all.md", "--format", "table"], "--out: expected a file"),
        (["--out", "all.csv", "--samples", "1000"], "--samples: CSV holds results, and no advice"),
        (["--format", "csv", "--mine", "broken.json"], "on them; leave --mine out, or choose another --format"),
        (["--format", "csv", "--at-least", "0.9"], "--at-least: CSV holds results, and no advice"),
    ],
)
def test_another_format_is_a_mistake(arguments: list[str], words: str, two_machines: Path) -> None:
    """Told before anything is read."""
    done = run_inside(["compare", ".", *arguments], two_machines)
    assert done.status == 2
    assert words in " ".join(done.err.split())


@pytest.mark.parametrize("form", ["table", "md", "csv", "json", "html"])
def test_nothing_to_compare_is_a_mistake(form: str, tmp_path: Path) -> None:
    """Told in each format, with why each file gave nothing; a script must not take it for success."""
    (tmp_path / "broken.json").write_text("[]")
    done = run_inside(["compare", ".", "--format", form], tmp_path)
    assert done.status == 2
    assert not done.out
    assert "broken.json" in done.err


@pytest.mark.slow
def test_another_machines_config_is_measured_here(tmp_path: Path) -> None:
    """From the file to the record beside this machine's results, which compare shows."""
    best = Side(config=TrainConfig(batch_size=16, optimizer_impl="foreach"), measurement=None)
    baseline = Side(config=TrainConfig(batch_size=16), measurement=None)
    write_document(make_result(target=TINY, baseline=baseline, best=best), tmp_path / "elsewhere.json")
    done = run(["cross", "elsewhere.json", "--trust", "--budget", budget(14), "--out", "cross.json"], tmp_path)
    assert done.status == 0, done.err
    assert read_document(tmp_path / "cross.json", Cross).over_baseline is not None
    assert done.left == ()


@pytest.mark.slow
def test_a_warm_start_is_told_in_the_result(tmp_path: Path) -> None:
    """Where it came from, what was adapted, and whether it helped."""
    best = Side(config=TrainConfig(batch_size=16, optimizer_impl="foreach", pin_memory=True), measurement=None)
    write_document(make_result(target=TINY, best=best), tmp_path / "elsewhere.json")
    done = run(
        ["--model", TINY, "--budget", budget(14), "--out", "tiny.json", "--warm-start", "elsewhere.json"], tmp_path
    )
    assert done.status == 0, done.err
    (record,) = read_result(tmp_path / "tiny.json").search.warm_start
    assert record.source == "elsewhere.json"
    assert record.samples_per_second
    assert "pin_memory=false for true" in record.adapted
    assert "warm start from Intel(R) Xeon(R) Gold 6338, 2 CPUs" in " ".join(done.err.split())
