"""`autotune doctor`, with the checks that are quick: what it keeps and ends with, and what tuning makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from autotune.cli import app
from autotune.doctor import examination, memory
from autotune.doctor.findings import TEN, Drop, Finding, examination_path
from autotune.hardware import probe_host
from autotune.measuring.progress import Progress
from autotune.search.stopping import Budget
from autotune.sessions.options import Options
from autotune.sessions.tuning import Tuning
from autotune.sessions.tuning_result import Setting
from tests.processes import budget, run


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The command in a folder of its own, with some checks."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str, checks: Any = (*examination.QUICK, memory.cap)) -> Any:
        monkeypatch.setattr(examination, "CHECKS", checks)
        return CliRunner().invoke(app, ["doctor", "--device", "cpu", *arguments])

    return command


def test_what_was_found_is_kept_beside_the_results_and_summed_up(doctor: Any, tmp_path: Path) -> None:
    """In the machine's own folder; shown are the ten points by number, with what holds and what was not checked."""
    done = doctor()
    assert done.exit_code == 0, done.output
    (file,) = tmp_path.glob("results/*/doctor-cpu.json")
    findings = json.loads(file.read_text())["findings"]
    assert {"processes", "cap on memory"} <= {finding["name"] for finding in findings}
    assert f"ok 2 {TEN[1]} not here 3 {TEN[2]}" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("place", "is_read"), [("{own}", True), ("{own.name}", False), ("results/b/{own.name}", False)]
)
def test_tunings_read_only_the_file_in_the_folder_of_the_machine(
    doctor: Any, tmp_path: Path, place: str, is_read: bool
) -> None:
    """However its path is written; one for another machine is not read."""

    def crashing(_: Any) -> Any:
        """A value that crashes."""
        drop = Drop(knob="precision", value="fp16", reason="it crashed")
        yield Finding(name="precision", status="does not hold", found="", remedy="it is left out", drops=(drop,))

    own = examination_path(tmp_path / "results" / probe_host().slug, "cpu")
    done = doctor("--out", place.format(own=own), checks=(crashing,))
    assert "precision=fp16" in done.output, done.output
    assert ("tunings do not read this file" in " ".join(done.output.split())) is not is_read


def test_a_machine_that_cannot_be_trusted_ends_with_a_status_of_its_own(doctor: Any, tmp_path: Path) -> None:
    """A check that does not even end well is such a finding, and costs the others nothing; a script gets the file."""

    def broken(_: Any) -> Any:
        """Something that fails."""
        raise OSError("no space left on device")

    done = doctor("--json", checks=(broken, *examination.QUICK))
    assert done.exit_code == 4
    told = json.loads(done.stdout)
    assert told["trusted"] is False
    first, *others = told["findings"]
    assert (first["name"], first["found"]) == ("Something that fails", "no space left on device")
    assert first["remedy"].startswith("run doctor again")
    assert others
    (file,) = tmp_path.glob("results/*/doctor-cpu.json")
    assert json.loads(file.read_text()) == json.loads(done.stdout)


def test_a_folder_that_cannot_be_written_to_is_told(doctor: Any, tmp_path: Path) -> None:
    """Where there is a file of that name; before any check, with the option that helps."""
    (tmp_path / "taken").write_text("")
    done = doctor("--out", "taken/here", checks=(pytest.fail,))
    assert done.exit_code == 2
    assert "--out" in done.stderr


def test_tuning_believes_no_old_figure_of_what_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and limits are read anew; what a check of torch or the driver found holds."""
    monkeypatch.chdir(tmp_path)
    here = probe_host()
    old = [
        Finding(name="host memory", status="does not hold", found="1 MiB is available", remedy="end programs"),
        Finding(name="address space", status="does not hold", found="it was limited", remedy="lift it"),
        Finding(name="precision", status="does not hold", found="fp16 crashed", remedy="it is left out", point=2),
    ]
    stored = examination.examine_quickly(here, "cpu").model_copy(update={"findings": tuple(old)})
    place = examination_path(tmp_path / "results" / here.slug, "cpu")
    place.parent.mkdir(parents=True)
    stored.write(place)
    tuning = Tuning(Options(target="made.up:build"), Progress(), Budget(60.0))
    found = tuning._examined(cast("Setting", SimpleNamespace(hardware=here, device="cpu")))
    assert not {one.found for one in old[:2]} & {one.found for one in found.findings}
    assert [one.name for one in found.findings].count("host memory") == 1
    assert old[2] in found.findings


@pytest.mark.slow
def test_tuning_leaves_out_what_the_doctor_found(tmp_path: Path) -> None:
    """The value is not searched, and the note says why."""
    lost = Finding(
        name="optimizer_impl", status="does not hold", found="fused: it crashed", remedy="it is left out",
        point=2, drops=(Drop(knob="optimizer_impl", value="fused", reason="it crashed"),),
    )  # fmt: skip
    examined = examination.examine_quickly(probe_host(), "cpu").model_copy(update={"findings": (lost,)})
    examined.write(examination_path(tmp_path / "results" / probe_host().slug, "cpu"))
    done = run(
        ["--model", "tests.workloads.tiny:build", "--budget", budget(16), "--only", "optimizer_impl", "--quiet",
         "--pin", "num_threads=1", "--out", "out.json"],
        tmp_path,
    )  # fmt: skip
    assert done.status == 0, done.err
    result = json.loads((tmp_path / "out.json").read_text())
    assert any("fused: it crashed" in note for note in result["search"]["notes"])
    assert not any(trial["changes"].get("optimizer_impl") == "fused" for trial in result["trials"])
