"""Faults of the place where trials are kept: no burst is lost with it, and no later run is blocked by it."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.errors import UsageError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search import storage
from autotune.search.storage import open_study
from autotune.search.trials import TrialLog
from tests.faults.scenarios import fault
from tests.search.surface import make_space

if TYPE_CHECKING:
    import optuna

HOLD_LOCK = (
    "import filelock, sys, time; "
    "lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); time.sleep(60)"
)


def open_in(folder: Path, *, url: str | None = None, resume: bool = False) -> optuna.Study:
    """A study in a folder."""
    return open_study(
        name=f"study-{time.monotonic_ns()}", storage=url, journal=folder / "r.journal", sampler="random", seed=0,
        attributes={"target": "a:b"}, resume=resume,
    )  # fmt: skip


def run_burst(log: TrialLog, batch_size: int) -> None:
    """One burst, recorded."""
    point = Point(config=TrainConfig(batch_size=batch_size))
    log.record(Burst(point=point, outcome=Outcome.CRASHED, seconds=1.0), "stage", "reason")


def sizes(log: TrialLog) -> list[int]:
    """The batch sizes that were recorded."""
    return [trial.burst.point.config.batch_size for trial in log.trials]


@fault(
    "The storage of trials",
    "the journal's folder disappears in mid-run",
    "no burst is lost; told once; the search goes on",
)
def test_a_journal_that_disappears_costs_no_burst(tmp_path: Path) -> None:
    """What was measured before and after is there, and the sampler proposes as before."""
    folder, told = tmp_path / "results", []
    folder.mkdir()
    log = TrialLog(open_in(folder), make_space(), told.append)
    run_burst(log, 8)
    shutil.rmtree(folder)
    run_burst(log, 16)
    run_burst(log, 32)
    assert sizes(log) == [8, 16, 32]
    assert len(told) == 1
    assert "--resume" in told[0]
    assert log.propose(lambda _: None, tries=50) is not None
    assert len(log.study.trials) == 4


@fault(
    "The storage of trials",
    "the database breaks while a burst runs",
    "that burst is not lost; told once; the search goes on",
)
def test_a_database_that_breaks_costs_no_burst(tmp_path: Path) -> None:
    """The end of a burst cannot be stored any more, and is kept all the same."""
    told: list[str] = []
    log = TrialLog(open_in(tmp_path, url=f"sqlite:///{tmp_path}/trials.db"), make_space(), told.append)
    run_burst(log, 8)
    proposed = log.propose(lambda _: None, tries=50)
    assert proposed is not None
    with sqlite3.connect(tmp_path / "trials.db") as database:
        database.execute("DROP TABLE trial_user_attributes")
    asked, point = proposed
    log.finish(asked, "stage", "reason", Burst(point=point, outcome=Outcome.CRASHED, seconds=1.0), None)
    assert [trial.burst.point for trial in log.trials][1:] == [point]
    assert len(told) == 1
    assert [trial.user_attrs["stage"] for trial in log.study.trials] == ["stage", "stage"]


@fault(
    "The storage of trials",
    "another process is stuck with the journal's lock",
    "told within seconds; free once that process is killed",
)
def test_a_stuck_lock_is_told_and_a_dead_ones_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock belongs to the process, not to its file."""
    monkeypatch.setattr(storage, "LOCK_SECONDS", 0.5)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path / "r.journal.lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=r"r\.journal.* cannot be opened"):
            open_in(tmp_path)
    finally:
        holder.kill()
        holder.wait()
    assert open_in(tmp_path).trials == []


@fault("The storage of trials", "another run is killed in the middle of a journal line", "the next line is whole")
def test_a_half_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    """Both runs write to one journal, so that what one leaves the other must repair."""
    log = TrialLog(open_in(tmp_path), make_space())
    run_burst(log, 8)
    with (tmp_path / "r.journal").open("ab") as file:
        file.write(b'{"op_code":6,"work')
    told: list[str] = []
    again = TrialLog(open_in(tmp_path, resume=False), make_space(), told.append)
    run_burst(log, 16)
    run_burst(again, 32)
    assert told == []
    assert all(json.loads(line) for line in (tmp_path / "r.journal").read_text().splitlines())


@fault(
    "The storage of trials", "the journal's name belongs to another program's file", "told; the file is left as it is"
)
def test_a_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    """Nothing is cut from what is no journal of ours, even when its last line has no end."""
    diary = "Monday: rain\nTuesday: sun"
    (tmp_path / "r.journal").write_text(diary)
    with pytest.raises(UsageError, match=r"r\.journal"):
        open_in(tmp_path)
    assert (tmp_path / "r.journal").read_text() == diary
