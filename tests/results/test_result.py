"""The result file: whole or not at all, read back as it was, and an error of its own for each way to fail."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from autotune.errors import ResultFileError
from autotune.knobs.config import TrainConfig
from autotune.measuring.numerics import Numerics
from autotune.results import files
from autotune.results.compare import compare
from autotune.results.files import keep_document, parse_document, write_document
from autotune.results.gather import Gathered
from autotune.results.result import Result, Side, TrialRecord, place_of_partial, read_result
from autotune.terminal.comparison import comparison_table
from autotune.terminal.console import hardware_table, result_table
from tests.broken import json_values, leaves, with_value
from tests.factories import make_gpu, make_hardware, make_measurement, make_result

AGREES = Numerics(outcome="agrees", reason="as eager fp32")
WHOLE = json.loads(make_result(hardware=make_hardware(make_gpu()), numerics=AGREES).model_dump_json(by_alias=True))


def show(*renderables: Any) -> str:
    """What is printed of them."""
    console = Console(file=io.StringIO(), width=100)
    console.print(*renderables)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_result_survives_the_file(tmp_path: Path) -> None:
    """What is written is what is read, in folders that are made on the way."""
    result = make_result(hardware=make_hardware(make_gpu()))
    path = tmp_path / "rtx-4070" / "digits.json"
    write_document(result, path)
    assert read_result(path) == result
    assert read_result(str(path)) == result


def test_the_file_is_plain_json_that_names_its_schema(tmp_path: Path) -> None:
    """Other programs read it without this package; NaN is no figure and no JSON."""
    path = tmp_path / "digits.json"
    measurement = make_measurement(1000, final_loss=float("nan"))
    write_document(make_result(best=Side(config=TrainConfig(), measurement=measurement)), path)

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    data = json.loads(path.read_text(encoding="utf-8"), parse_constant=no_constant)
    assert data["schema"] == "autotune.result/2"
    assert data["best"]["measurement"]["final_loss"] is None


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (None, "tiny.json"),
        ("", "tiny.json"),
        (make_result(status="partial").model_dump_json(by_alias=True), "tiny.json"),
        (make_result().model_dump_json(by_alias=True), "tiny-partial.json"),
        ('{"schema": "autotune.result/3", "status": "complete"}', "tiny-partial.json"),
    ],
    ids=["none", "empty", "partial", "complete", "of a newer autotune"],
)
def test_a_partial_result_replaces_nothing_that_may_be_complete(content: str | None, name: str, tmp_path: Path) -> None:
    """Nor what this version cannot read."""
    path = tmp_path / "tiny.json"
    if content is not None:
        path.write_text(content)
    assert place_of_partial(path) == tmp_path / name


def test_a_new_result_replaces_the_old_one(tmp_path: Path) -> None:
    """Tuning again leaves one file, the new one."""
    path = tmp_path / "digits.json"
    write_document(make_result(status="partial"), path)
    write_document(make_result(status="complete"), path)
    assert read_result(path).status == "complete"
    assert os.listdir(tmp_path) == ["digits.json"]


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_a_result_is_for_others_to_read(tmp_path: Path) -> None:
    """The file has the permissions that any new file gets, not those of a secret."""
    plain, path = tmp_path / "plain", tmp_path / "digits.json"
    plain.touch()
    write_document(make_result(), path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_failed_write_leaves_nothing_behind_and_the_old_file_whole(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs the new result, not the old one, and the message says what to do."""
    path = tmp_path / "digits.json"
    write_document(make_result(status="partial"), path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(ResultFileError, match=r"digits\.json: No space left on device; .* --out"):
        write_document(make_result(), path)
    assert os.listdir(tmp_path) == ["digits.json"]
    assert read_result(path).status == "partial"


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C ends at once, and no half file stays."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_document(make_result(), tmp_path / "digits.json")
    assert os.listdir(tmp_path) == []


def test_a_place_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    """A file where a folder should be cannot take a result, nor can a folder be replaced by one."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "digits.json", tmp_path / "folder", Path()):
        with pytest.raises(ResultFileError, match="could not be written"):
            write_document(make_result(), path)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_an_error(tmp_path: Path) -> None:
    """A folder of others cannot take a result."""
    tmp_path.chmod(0o500)
    with pytest.raises(ResultFileError, match="could not be written"):
        write_document(make_result(), tmp_path / "digits.json")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """The most common mistake has its own words."""
    with pytest.raises(ResultFileError, match="there is none"):
        read_result(tmp_path / "digits.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"not valid JSON \(.*; name a result file: ls results/"),
        (b'{"schema": "autotune.result/2"', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff\xfe\x00", "is not a result file: it is not text in UTF-8; name a result file"),
        (b"[]", "is not a result file of autotune"),
        (b'{"schema": 1}', "is not a result file of autotune"),
        (b'{"schema": "autotune.result/3"}', "another autotune: .* or tune again"),
        (b'{"schema": "autotune.result/1"}', "expected the schema autotune.result/2, got 'autotune.result/1'"),
        (b'{"schema": "autotune.result/x"}', "another autotune"),
        (b'{"schema": "other.result/1"}', "name a file that autotune wrote"),
        (b'{"schema": "autotune.cross/2"}', "is not a result file of autotune"),
        (b'{"schema": "autotune.result/2"}', "is broken: status: field required"),
    ],
)
def test_each_wrong_file_is_told_apart(content: bytes, words: str, tmp_path: Path) -> None:
    """Cut off, foreign and files of another version each say what they are, and name themselves."""
    path = tmp_path / "digits.json"
    path.write_bytes(content)
    with pytest.raises(ResultFileError, match=words) as caught:
        read_result(path)
    assert str(path) in str(caught.value)


def test_a_folder_and_an_impossible_path_are_told(tmp_path: Path) -> None:
    """What cannot be opened at all is an error like the others."""
    for path in (str(tmp_path), "digits\0.json"):
        with pytest.raises(ResultFileError, match="cannot be read"):
            read_result(path)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("best", "config", "batch_size"), 0),
        (("best", "measurement", "blocks"), []),
        (("best", "measurement", "blocks", 0, "seconds"), 0.0),
        (("speedup", "ratio"), float("inf")),
        (("workload", "samples"), 10**400),
        (("best", "measurement", "epoch_samples"), 10**400),
        (("best", "measurement", "blocks", 0, "seconds"), 1e-300),
        (("constraints", "memory_target"), -1e308),
        (("constraints", "device"), "cuda:99"),
        (("constraints", "device"), ""),
        (("constraints", "pinned"), [[[1]]]),
        (("best", "measurement", "epoch_samples"), 0),
        (("hardware", "cpu", "budget"), 10**400),
        (("hardware", "gpus", 0, "temperature_celsius"), 10**400),
        (("search", "bursts"), -1),
        (("speedup", "ci95"), [2.0, 1.0]),
        (("created",), "2026-11-20T12:30:00"),
        (("status",), "finished"),
        (("search",), None),
    ],
)
def test_a_broken_value_is_told_by_its_place(path: tuple[Any, ...], value: Any) -> None:
    """A file that was edited by hand says where it is wrong."""
    with pytest.raises(ResultFileError) as caught:
        parse_document(with_value(WHOLE, path, value), "digits.json", Result)
    assert str(caught.value).startswith(f"digits.json is broken: {'.'.join(map(str, path))}: ")


NEWER = [
    (("energy_joules",), 1.0, "energy_joules"),
    (("search", "duets"), 4, "search.duets"),
    (("best", "measurement", "blocks", 0, "watts"), 1.0, "best.measurement.blocks.watts"),
    (("best", "config", "in_order"), True, "best.config.in_order"),
    (("hardware", "gpus", 0, "nvlink"), True, "hardware.gpus.nvlink"),
]


@pytest.mark.parametrize(("path", "value", "told"), NEWER)
def test_what_a_newer_autotune_adds_is_ignored_and_told(path: tuple[Any, ...], value: Any, told: str) -> None:
    """At every level, knobs included: by name, and the rest is what it was."""
    result = parse_document(with_value(WHOLE, path, value), "digits.json", Result)
    assert result.ignored == f"ignored, since this autotune does not know it: {told}"
    assert result.model_dump() == parse_document(WHOLE, "digits.json", Result).model_dump()
    assert told in show(result_table(result))


def test_many_unknown_fields_are_told_in_one_short_sentence() -> None:
    """Of a list each field once; of many the first."""
    data = with_value(WHOLE, ("best", "measurement", "blocks"), [
        {**block, "watts": 1.0} for block in WHOLE["best"]["measurement"]["blocks"]
    ])  # fmt: skip
    result = parse_document(data | {f"new_{number}": 1 for number in range(9)}, "digits.json", Result)
    assert str(result.ignored).count("watts") == 1
    assert str(result.ignored).endswith("new_6 and 2 more")


def test_what_this_autotune_wrote_has_nothing_to_tell() -> None:
    """Figures that are derived from others are known."""
    assert parse_document(WHOLE, "digits.json", Result).ignored is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("best", "config", "precision"), "fp8"),
        (("trials",), [{"stage": "a", "reason": "", "outcome": "stuck", "seconds": 1.0}]),
        (("stopped_by",), "boredom"),
    ],
)
def test_a_newer_file_is_never_called_broken(path: tuple[Any, ...], value: Any) -> None:
    """A word that only a newer autotune knows asks for an upgrade; without a newer writer the file is broken."""
    data = with_value(WHOLE, path, value)
    with pytest.raises(ResultFileError, match="is broken"):
        parse_document(data, "digits.json", Result)
    with pytest.raises(ResultFileError, match=r"written by a newer autotune \(99\.1\.0\).*upgrade autotune$"):
        parse_document(with_value(data, ("software", "autotune"), "99.1.0"), "digits.json", Result)


def test_a_burst_is_scored_through_its_duet() -> None:
    """Its own rate is of another moment than the baseline's."""
    record = {"stage": "one knob at a time", "reason": "", "outcome": "ok", "seconds": 3.0}
    alone = TrialRecord.model_validate(record | {"samples_per_second": 1000.0})
    beside = TrialRecord.model_validate(record | {"samples_per_second": 1000.0, "score": 1250.0})
    failed = TrialRecord.model_validate(record | {"outcome": "oom"})
    assert [make_result().score_of(trial) for trial in (alone, beside, failed)] == [1000.0, 1250.0, None]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are those of POSIX")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody writes to it: opening it would block for ever."""
    os.mkfifo(tmp_path / "digits.json")
    with pytest.raises(ResultFileError, match="got a folder, pipe or device; name a result file: ls"):
        read_result(tmp_path / "digits.json")


def test_a_file_larger_than_any_result_is_not_read(tmp_path: Path) -> None:
    """300 MB would take many seconds, and memory."""
    with (tmp_path / "digits.json").open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(ResultFileError, match=r"it has 300 MiB, and autotune reads 32\.0 MiB at most; name another"):
        read_result(tmp_path / "digits.json")


def test_a_file_that_no_command_would_read_is_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into the temporary folder, so that nothing measured is lost, and the message says so."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    with pytest.raises(ResultFileError, match=r"no command reads more than 1000 B; tune again$"):
        write_document(make_result(), tmp_path / "digits.json")
    place, failure = keep_document(make_result(), tmp_path / "digits.json")
    assert place is not None
    assert json.loads(place.read_text())["status"] == "complete"
    assert str(place) in str(failure)
    assert not (tmp_path / "digits.json").exists()


SURROGATE = "caf\udce9"


def test_text_that_is_no_unicode_is_spelled_out_and_written(tmp_path: Path) -> None:
    """A folder that was named in Latin-1 reaches many fields; the search must not be lost to it."""
    result = make_result(
        name=SURROGATE,
        target=f"{SURROGATE}/train.py:build",
        hardware=make_hardware(hostname=SURROGATE),
        best=Side(config=TrainConfig(), parameters={SURROGATE: SURROGATE}, measurement=make_measurement(1000)),
    )
    result = result.model_copy(update={"search": result.search.model_copy(update={"notes": (SURROGATE,)})})
    write_document(result, tmp_path / "digits.json")
    assert "udce9" in (tmp_path / "digits.json").read_text(encoding="utf-8")
    kept = read_result(tmp_path / "digits.json")
    assert kept.workload.target == "caf\\udce9/train.py:build"
    assert kept.hardware.hostname == "caf\\udce9"


def test_half_a_surrogate_pair_in_a_file_is_spelled_out(tmp_path: Path) -> None:
    """JSON may escape what no text can hold; Python's own writer does so."""
    data = make_result().model_dump(mode="json", by_alias=True)
    data["hardware"]["hostname"] = SURROGATE
    (tmp_path / "digits.json").write_text(json.dumps(data))
    assert read_result(tmp_path / "digits.json").hardware.hostname == "caf\\udce9"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), UnicodeEncodeError("utf-8", "x", 0, 1, "odd")])
def test_whatever_goes_wrong_at_the_end_a_file_is_left(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the temporary folder, and the message says where."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    real = files.write_whole

    def fails_once(path: Path, text: str) -> None:
        monkeypatch.setattr(files, "write_whole", real)
        raise error

    monkeypatch.setattr(files, "write_whole", fails_once)
    place, failure = keep_document(make_result(), tmp_path / "digits.json")
    assert place is not None
    assert place.parent == tmp_path / "elsewhere"
    assert read_result(place) == make_result()
    assert str(place) in str(failure)


def test_changed_knobs_are_before_and_after_with_parameters_of_build() -> None:
    """A reader sees at one place all that is different, build's own arguments included."""
    baseline = Side(config=TrainConfig(), parameters={"max_len": 512, "mixup": 0.1}, measurement=None)
    best = Side(config=TrainConfig(precision="bf16"), parameters={"max_len": 256, "mixup": 0.1}, measurement=None)
    result = make_result(baseline=baseline, best=best)
    assert result.changed_knobs == {"precision": ("fp32", "bf16"), "max_len": (512, 256)}


@given(json_values)
def test_no_json_makes_parsing_fail_in_another_way(data: Any) -> None:
    """Whatever a file holds that is none of ours, the answer is a ResultFileError."""
    for candidate in (data, {"schema": data}, {"schema": Result.SCHEMA, "status": data}):
        with pytest.raises(ResultFileError):
            parse_document(candidate, "digits.json", Result)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(leaves(WHOLE)[1:]), json_values)
def test_what_is_accepted_can_be_shown(path: tuple[Any, ...], value: Any) -> None:
    """A result with any one value replaced is refused with our error, or it can be shown and compared."""
    with contextlib.suppress(ResultFileError):
        result = parse_document(with_value(WHOLE, path, value), "digits.json", Result)
        shown = show(
            result_table(result),
            hardware_table(result.hardware),
            comparison_table(compare(Gathered([("a.json", result)]))),
        )
        assert "samples/s" in shown


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_makes_reading_fail_in_another_way(tmp_path: Path, content: bytes) -> None:
    """Whatever bytes a file holds, the answer is a ResultFileError."""
    path = tmp_path / "digits.json"
    path.write_bytes(content)
    with pytest.raises(ResultFileError):
        read_result(path)
