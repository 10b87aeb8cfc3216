"""What trainings have reached, read from the lines beside a result: the ratios, and why one falls short."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from autotune.hardware.host import read_cpu
from autotune.knobs.config import TrainConfig
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.results import trainings
from autotune.results.result import Result, Side
from autotune.results.trainings import Note, Training, order_of, read_trainings, trainings_path
from tests.factories import GIB, make_gpu, make_hardware, make_measurement, make_result, note_line

NOW = datetime.now(timezone.utc)


def claimed(**measured: Any) -> Result:
    """A result that claims 1000 samples/s."""
    side = Side(config=TrainConfig(batch_size=32), measurement=make_measurement(1000.0, spread=0.0, **measured))
    return make_result(best=side)


def told(result: Result, folder: Path, *lines: str) -> list[str]:
    """What is said of the notes."""
    trainings_path(folder / "result.json").write_text("\n".join(lines))
    noted = read_trainings(result, folder / "result.json")
    assert noted is not None
    return noted.sentences()


def test_the_ratios_of_the_trainings_are_told_in_order_of_time(tmp_path: Path) -> None:
    """Each is that of all its notes."""
    result = claimed()
    lines = [
        note_line(result, "b", 1.01),
        note_line(result, "c", 0.96, ended=(NOW + timedelta(hours=1)).isoformat()),
        note_line(result, "c", 1.00, ended=(NOW + timedelta(hours=2)).isoformat()),
        note_line(result, "a", 0.99, ended=(NOW - timedelta(hours=1)).isoformat()),
    ]
    assert told(result, tmp_path, *lines) == ["in 3 trainings: 0.99, 1.01, 0.98 of the claimed rate"]


def test_of_many_trainings_the_last_are_shown(tmp_path: Path) -> None:
    """All are counted."""
    result = claimed()
    lines = [note_line(result, str(n), ended=(NOW + timedelta(hours=n)).isoformat()) for n in range(7)]
    assert told(result, tmp_path, *lines) == [
        "in 7 trainings, the last 5: 1.00, 1.00, 1.00, 1.00, 1.00 of the claimed rate"
    ]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param('{"schema": "autotune.realised/1", "res', id="cut off"),
        pytest.param("\x00\xff[]", id="no JSON"),
        pytest.param({"schema": "autotune.realised/2"}, id="of a newer autotune"),
        pytest.param({"result": "2001-01-01T00:00:00+00:00"}, id="of the result that was here before"),
        pytest.param({"samples": 0}, id="out of range"),
        pytest.param({"compiled": True}, id="in which something was compiled"),
    ],
)
def test_lines_that_are_no_notes_of_the_result_are_skipped(other: str | dict[str, Any], tmp_path: Path) -> None:
    """The others count."""
    result = claimed()
    text = other if isinstance(other, str) else note_line(result, "b", 0.5, **other)
    assert told(result, tmp_path, note_line(result), text) == ["in 1 training: 1.00 of the claimed rate"]


@pytest.mark.parametrize("change", [{"cpus": 99}, {"cpu": "another"}, {"torch": "1.0"}, {"ranks": 2}], ids=str)
def test_trainings_elsewhere_are_not_counted(change: dict[str, Any], tmp_path: Path) -> None:
    """The claim is none of theirs."""
    result = claimed()
    assert told(result, tmp_path, note_line(result, ratio=0.5, **change)) == [
        "1 training is not counted: on another machine, device, torch or number of ranks"
    ]


@pytest.mark.parametrize(("gpu", "counts"), [("NVIDIA GeForce RTX 4070", True), ("another", False), (None, False)])
def test_only_trainings_on_the_same_gpu_count_for_a_result_of_a_gpu(
    gpu: str | None, counts: bool, tmp_path: Path
) -> None:
    """A short try on the CPU says nothing of it."""
    cuda = make_result().constraints.model_copy(update={"device": "cuda"})
    result = claimed().model_copy(update={"constraints": cuda, "hardware": make_hardware(make_gpu())})
    (line,) = told(result, tmp_path, note_line(result, gpu=gpu))
    assert line.startswith("in 1 training: 1.00" if counts else "1 training is not counted: on another machine, device")


def test_a_training_on_a_gpu_does_not_count_for_a_result_of_the_cpu(tmp_path: Path) -> None:
    """It is on the same machine, and many times as fast."""
    (line,) = told(claimed(), tmp_path, note_line(claimed(), ratio=20.0, gpu="NVIDIA GeForce RTX 4070"))
    assert line.startswith("1 training is not counted: on another machine, device")


def test_of_very_many_notes_the_last_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note may be cut off at the front."""
    result = claimed()
    monkeypatch.setattr(trainings, "MOST_BYTES", int(2.5 * len(note_line(result))))
    lines = [note_line(result, training, ratio) for training, ratio in (("a", 1.03), ("b", 1.02), ("c", 1.01))]
    assert told(result, tmp_path, *lines) == ["in 2 trainings: 1.02, 1.01 of the claimed rate"]


def test_nothing_is_said_without_notes(tmp_path: Path) -> None:
    """Nor where they cannot be read."""
    trainings_path(tmp_path / "result.json").mkdir()
    noted = read_trainings(claimed(), tmp_path / "result.json")
    assert noted is not None
    assert noted.sentences() == []


THEN = TelemetrySummary(seconds=10.0, foreign_cpu_fraction=0.0, idle_cpu_fraction=0.0, sm_clock_mhz=1980.0)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"wait_seconds": 75.0}, "waiting for data took 25 % of the time, 10 % when it was measured"),
        ({"taken_fraction": 0.25}, "other load took 25 % of the CPUs, 0 % when it was measured"),
        ({"sm_clock_mhz": 1500.0}, "the GPU's clock was 1500 MHz, 1980 MHz when it was measured"),
        ({"sample_elements": 400.0}, "samples had 400 elements, 300 in notes that do not fall short"),
        ({"host_memory_bytes": 4 * GIB}, "memory reached 4.00 GiB, 2.00 GiB when it was measured"),
        ({}, "clock, waiting, memory, other load and length of samples have not changed enough to explain it"),
    ],
    ids=lambda value: next(iter(value), "nothing") if isinstance(value, dict) else "",
)
def test_a_training_that_falls_short_for_minutes_says_what_has_changed(
    changes: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    """The change that accounts for most of it, beside what was measured."""
    result = claimed(telemetry=THEN)
    before = note_line(result, sample_elements=300.0, wait_seconds=30.0, ended=(NOW - timedelta(hours=1)).isoformat())
    short = note_line(result, "b", 0.8, **{"wait_seconds": 30.0, "sample_elements": 300.0} | changes)
    ratios, why = told(result, tmp_path, before, short)
    assert ratios == "in 2 trainings: 1.00, 0.80 of the claimed rate"
    assert why.endswith(f"fell 20 % short for 5 m 00 s: {cause}")


@pytest.mark.parametrize(("ratio", "seconds"), [(0.8, 100.0), (0.95, 3000.0)])
def test_a_moment_or_a_little_is_no_shortfall(ratio: float, seconds: float, tmp_path: Path) -> None:
    """It takes two minutes, and a tenth."""
    result = claimed()
    assert len(told(result, tmp_path, note_line(result), note_line(result, ratio=ratio, seconds=seconds))) == 1


def test_what_is_ordered_names_the_machine_and_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a file that stays the same where a script changes its folder."""
    monkeypatch.chdir(tmp_path)
    result, cpu = claimed(), read_cpu({})
    assert order_of(result, "train-cpu.json", None) == {
        "path": str(tmp_path / "train-cpu.realised.jsonl"), "result": result.created.isoformat(),
        "cpu": cpu.model, "cpus": cpu.budget, "step_samples": None,
    }  # fmt: skip


def test_a_training_is_the_sum_of_its_notes() -> None:
    """Not the mean of their rates."""
    result = claimed()
    notes = [
        Note.model_validate_json(note_line(result, ratio=ratio, seconds=s)) for ratio, s in ((1.0, 300.0), (0.5, 100))
    ]
    assert Training(tuple(notes)).rate == pytest.approx(875.0, rel=1e-3)
