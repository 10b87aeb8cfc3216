"""Faults around the whole command: signals, disks, files, and two runs at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from autotune.results.result import read_result
from tests.faults.commands import TINY, Run, run
from tests.faults.scenarios import COMMANDED, PACKAGE, STAGES, Stage, fault
from tests.inside import run_inside
from tests.processes import BUDGET_OVERRUN_SECONDS, ROOT, budget, slowness

SLOW_DISK = Path(__file__).parent / "workloads" / "slow_disk"
MAY_MOUNT = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None
pytestmark = pytest.mark.slow
needs_mounts = pytest.mark.skipif(not MAY_MOUNT, reason="small file systems are mounted by root, on Linux, by unshare")


def short() -> list[str]:
    """Words of a command that leaves nothing to search on a CPU: the baseline is all that is run."""
    return ["--model", TINY, "--only", "cudnn_benchmark", "--budget", budget(20)]


def small_disk(place: Path, size: str) -> list[str]:
    """Words that give a command a small file system at a place, which nobody else sees."""
    mount = f'mount -t tmpfs -o size={size} tmpfs "{place}" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name or "writing")
def test_a_signal_ends_each_stage_in_good_order(stage: Stage, tmp_path: Path) -> None:
    """The status tells it, and what was measured is written."""
    environment = {"PYTHONPATH": f"{SLOW_DISK}:{ROOT}", "FAULTS_WRITING": str(tmp_path / "writing")}
    arguments = ["--model", stage.target, "--budget", budget(60), "--out", "r.json", *stage.options]
    command = Run(arguments, tmp_path, environment=environment if stage.name is None else None)
    if stage.name is None:
        command.wait_for((tmp_path / "writing").exists)
        command.signal(stage.signal)  # and once more, which elsewhere would end it at once
        time.sleep(0.1)
    else:
        command.wait_for_stage(stage.name)
    command.signal(stage.signal)
    finished = command.finish(seconds=20)
    assert finished.status == stage.status, finished.err
    assert finished.left == ()
    out = tmp_path / "r.json"
    assert (read_result(out).status if out.exists() else None) == stage.written
    assert not list(tmp_path.glob(".r.json.*"))


@fault("The command and its surroundings", "a second Ctrl-C", "exit status 130 at once, no result")
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Even when the first is not acted on, because the command itself is busy: here, with a disk that is stuck."""
    environment = {"PYTHONPATH": f"{SLOW_DISK}:{ROOT}", "FAULTS_BUSY": str(tmp_path / "busy")}
    command = Run(["--model", TINY, "--budget", "60s", "--out", "r.json"], tmp_path, environment=environment)
    command.wait_for((tmp_path / "busy").exists)
    command.signal(signal.SIGINT)
    time.sleep(0.3)
    assert command.process.poll() is None
    command.signal(signal.SIGINT)
    began = time.monotonic()
    finished = command.finish(seconds=20)
    assert time.monotonic() - began < 2 + BUDGET_OVERRUN_SECONDS  # what is left is looked for that long
    assert finished.status == 130
    assert finished.left == ()
    assert not (tmp_path / "r.json").exists()


@fault(
    "The command and its surroundings",
    "SIGKILL of the command in a burst that hangs; its module hangs at exit too",
    "nothing is left",
)
def test_a_killed_command_leaves_nothing(tmp_path: Path) -> None:
    """It has no chance to clean up: its children end by themselves, and take the temporary folder along."""
    target = f"{PACKAGE}.at_import.hangs_at_exit:build"
    command = Run(["--model", target, "--budget", "60s", "--out", "r.json"], tmp_path)
    command.wait_for_stage("baseline")
    time.sleep(1.0)
    command.signal(signal.SIGKILL)
    finished = command.finish(seconds=20)
    assert finished.status == -signal.SIGKILL
    assert finished.left == ()
    assert not (tmp_path / "r.json").exists()


@fault(
    "The command and its surroundings",
    "SIGKILL of the command while the module is imported",
    "no process is left; the next run removes the folder",
)
def test_a_command_killed_in_an_import_leaves_no_process(tmp_path: Path) -> None:
    """A process in the middle of an import can do nothing but die too."""
    command = Run(["--model", f"{PACKAGE}.at_import.hangs:build", "--budget", "60s"], tmp_path)
    command.wait_for_stage("importing")
    command.wait_for(lambda: any(command.temporary.glob("autotune-*/owner.json")))
    time.sleep(0.5)
    command.signal(signal.SIGKILL)
    (folder,) = command.finish(seconds=20).left
    assert folder.startswith("autotune-")
    assert run(["--model", f"{PACKAGE}.at_import.raises:build"], tmp_path).left == ()


@fault("The command and its surroundings", "SIGHUP under nohup", "exit status 0, a complete result")
@fault(
    "The command and its surroundings",
    "the working directory was deleted before the start",
    "exit status 0 with an absolute --out",
)
def test_neither_a_terminal_nor_a_working_directory_is_needed(tmp_path: Path) -> None:
    """A signal that was ignored when the command began stays so; the module is found elsewhere."""
    gone = tmp_path / "gone"
    gone.mkdir()
    before = ["sh", "-c", 'cd "$0" && rmdir "$0" && exec nohup "$@"', str(gone)]
    command = Run([*short(), "--out", str(tmp_path / "r.json")], tmp_path, before=before)
    command.wait_for_stage("baseline")
    command.signal(signal.SIGHUP)
    finished = command.finish()
    assert finished.status == 0, finished.err
    assert finished.left == ()
    assert read_result(tmp_path / "r.json").status == "complete"


@fault(
    "The command and its surroundings",
    "the working directory was deleted, and --out is relative",
    "exit status 2, told",
)
def test_a_deleted_working_directory_holds_no_result(tmp_path: Path) -> None:
    """There is no place for a result: that is told before anything is measured."""
    gone = tmp_path / "gone"
    gone.mkdir()
    before = ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone)]
    finished = run([*short(), "--out", "r/r.json"], tmp_path, before=before)
    assert finished.status == 2, finished.err
    assert "--out" in finished.err
    assert "baseline" not in finished.err
    assert finished.left == ()


@fault(
    "The command and its surroundings",
    "the folder of the result is deleted while it runs",
    "exit status 0, a complete result; told",
)
def test_a_folder_that_is_deleted_meanwhile_is_made_again(tmp_path: Path) -> None:
    """The journal is lost, and that is told; the result is not."""
    command = Run([*short(), "--out", "results/r.json"], tmp_path)
    command.wait_for_stage("baseline")
    shutil.rmtree(tmp_path / "results")
    finished = command.finish()
    assert finished.status == 0, finished.err
    assert "can no longer be stored" in finished.err
    assert finished.left == ()
    assert read_result(tmp_path / "results" / "r.json").status == "complete"


@needs_mounts
@fault(
    "The command and its surroundings",
    "the disk is full",
    "exit status 2; the result lies in the temporary folder, told",
)
def test_a_full_disk_does_not_lose_the_result(tmp_path: Path) -> None:
    """Neither the journal nor the result fits: the search goes on in memory, and its result is put elsewhere."""
    disk = tmp_path / "disk"
    disk.mkdir()
    finished = run([*short(), "--out", str(disk / "r.json")], tmp_path, before=small_disk(disk, "4k"))
    assert finished.status == 2, finished.err
    assert "No space left" in finished.err
    assert "can no longer be stored" in finished.err
    (saved,) = (tmp_path / "tmp").resolve().glob("autotune-result-r-*.json")
    assert str(saved) in finished.err.replace(" ", "")
    assert read_result(saved).status == "complete"
    assert [what for what in finished.left if what != saved.name] == []


@needs_mounts
@fault("The command and its surroundings", "/dev/shm is full, with workers", "shm_exhausted; the next burst is ok")
def test_a_full_shared_memory_is_told(tmp_path: Path) -> None:
    """A batch that does not fit there ends the burst, whichever way torch finds out."""
    before = [*small_disk(Path("/dev/shm"), "2m"), sys.executable, "-m", "tests.faults.two_bursts"]
    finished = run(["memory:shared_memory", "2"], tmp_path, before=before, command=())
    assert finished.status == 0, finished.err
    assert finished.left == ()
    first, second = json.loads(finished.out)
    assert (first["outcome"], second["outcome"]) == ("shm_exhausted", "ok"), first["reason"]


@fault(
    "The command and its surroundings",
    "a corrupted result file lies where the new one belongs",
    "told by show (2); overwritten whole",
)
@fault(
    "The command and its surroundings",
    "standard input, output and error are closed",
    "exit status 0, a complete result",
)
@fault(
    "The command and its surroundings",
    "the journal ends in the middle of a line",
    "--resume takes the whole lines; exit status 0",
)
def test_a_corrupted_result_is_replaced_and_a_journal_cut_in_mid_line_is_resumed(tmp_path: Path) -> None:
    """Neither file is in the way of a run, which nobody needs to listen to; bursts before the cut run no more."""
    out, journal = tmp_path / "r.json", tmp_path / "r.journal"
    out.write_bytes(b'{"schema": "autotune.result/1", "status": "comp\x00\xff')
    shown = run_inside(["show", "r.json"], tmp_path)
    assert shown.status == 2
    assert "r.json" in shown.err
    first = run([*short(), "--out", "r.json"], tmp_path, before=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"])
    assert (first.status, first.left) == (0, ())
    assert read_result(out).status == "complete"
    with journal.open("ab") as file:
        file.write(b'{"op_code":6,"worker_id":"x","trial_id":0,"user_at')
    finished = run([*short(), "--out", "r.json", "--resume"], tmp_path)
    assert finished.status == 0, finished.err
    assert finished.left == ()
    assert read_result(out).search.resumed_bursts >= 1
    assert all(json.loads(line) for line in journal.read_text().splitlines())


@fault(
    "The command and its surroundings",
    "two runs on one journal and one result",
    "exit status 0 for both, one complete result, a whole journal",
)
def test_two_runs_at_once_do_not_harm_each_other(tmp_path: Path) -> None:
    """Each has its own study; the later result is the one that stays."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    runs = [Run([*short(), "--out", str(tmp_path / "r.json")], folder) for folder in folders]
    for finished in [one.finish() for one in runs]:
        assert finished.status == 0, finished.err
        assert finished.left == ()
    assert read_result(tmp_path / "r.json").status == "complete"
    assert not list(tmp_path.glob(".r.json.*"))
    lines = [json.loads(line) for line in (tmp_path / "r.journal").read_text().splitlines()]
    assert len({line["study_name"] for line in lines if line.get("study_name")}) == 2


@fault(
    "The command and its surroundings",
    "--resume while the run still goes on",
    "exit status 2, told; the first is not disturbed",
)
def test_a_run_is_not_resumed_while_it_goes_on(tmp_path: Path) -> None:
    """Two processes on one study would close each other's trials."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    arguments = ["--model", f"{COMMANDED}:hangs_at_another_batch", "--only", "batch_size", "--budget", "60s"]
    command = Run([*arguments, "--out", str(tmp_path / "r.json")], first)
    command.wait_for_stage("expected gain")
    refused = run([*arguments, "--out", str(tmp_path / "r.json"), "--resume"], second)
    assert refused.status == 2, refused.err
    assert f"process {command.process.pid}" in refused.err
    command.signal(signal.SIGINT)
    assert command.finish().status == 130
    assert read_result(tmp_path / "r.json").status == "partial"


@fault("The command and its surroundings", "compiling fails", "unsupported, and the search goes on")
def test_a_model_that_cannot_be_compiled_is_tuned_without(tmp_path: Path) -> None:
    """The compiler's failure is one outcome among others."""
    arguments = ["--model", f"{COMMANDED}:cannot_be_compiled", "--only", "compile_mode", "--budget", "3m"]
    finished = run([*arguments, "--out", "r.json"], tmp_path)
    assert finished.status == 0, finished.err
    assert finished.left == ()
    outcomes = read_result(tmp_path / "r.json").search.outcomes
    assert outcomes["unsupported"] == 1
    assert outcomes["ok"] >= 1
    assert "No working C++ compiler" in finished.err


@fault("The command and its surroundings", "the import hangs", "exit status 1 within the budget")
def test_an_import_that_hangs_ends_within_the_budget(tmp_path: Path) -> None:
    """It gets its share of the budget, and its end says what to do."""
    finished = run(["--model", f"{PACKAGE}.at_import.hangs:build", "--budget", budget(6)], tmp_path)
    assert finished.status == 1
    assert "did not finish within" in finished.err
    assert finished.seconds <= (6 + BUDGET_OVERRUN_SECONDS) * slowness()
    assert finished.left == ()
