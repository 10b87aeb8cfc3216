"""A script that has too little time to come to its training loop is out of time, and has not crashed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune.bursts.hosts.endings import OutOfTimeError, never_started
from autotune.bursts.hosts.protocol import Request
from autotune.errors import NothingFeasibleError, WorkloadError
from autotune.measuring.objective import SAMPLES_PER_SECOND
from autotune.measuring.records import Outcome
from autotune.scripts import Script, ScriptIsolation
from autotune.search.trials import Trial
from autotune.sessions.tuning_result import Findings, make_result
from tests.example_scripts import START_SECONDS, STEPS, alone
from tests.factories import make_burst

SLOW = "import time, torch\ntime.sleep(2)\n" + STEPS


def test_a_burst_that_could_not_begin_in_time_is_a_timeout() -> None:
    """Whatever else keeps a burst from having a process stays a crash."""
    point = make_burst().point
    assert never_started(point, OutOfTimeError("no time was left"), 1.0).outcome is Outcome.TIMEOUT
    assert never_started(point, WorkloadError("the file is gone"), 1.0).outcome is Outcome.CRASHED


def test_what_is_told_is_by_what_the_look_took() -> None:
    """Less than that cannot do; with as much, something else is slow."""
    with ScriptIsolation(Script(("python", "train.py"))) as isolation:
        isolation._seen = cast("Any", SimpleNamespace(seconds_to_loop=12.0))
        told = [str(isolation._out_of_time(seconds)) for seconds in (0.2, 5.0, 30.0)]
    assert told[0].startswith("train takes 12 s to reach its training loop, and no time was left for that; give")
    assert told[1].startswith("train takes 12 s to reach its training loop, and only 5 s were left for that; give")
    assert told[2].startswith("train did not reach its training loop within 30 s, where it had taken 12 s before")


def test_a_temporary_folder_that_a_burst_has_removed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a private view it is the same one for all bursts."""
    with ScriptIsolation(Script(("python", "train.py"))) as isolation:
        monkeypatch.setattr(isolation, "_changes", lambda _: {})
        monkeypatch.setattr(isolation, "_spawning", False)
        folder = Path(isolation._environment()["TMPDIR"])
        shutil.rmtree(folder)
        isolation._line(Request(job="host", target="train", device="cpu", point=make_burst().point))
        assert folder.is_dir()


@pytest.mark.slow
def test_a_script_that_takes_longer_to_its_loop_than_there_is_time_is_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started again after the look, and ended at the deadline."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SLOW)
    with ScriptIsolation(Script((sys.executable, "train.py"))) as isolation:
        isolation.start(START_SECONDS)
        burst = alone(isolation, 1.0)
    assert burst.outcome is Outcome.TIMEOUT
    assert "to reach its training loop, and" in str(burst.reason)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (SimpleNamespace(seconds_to_loop=20.0), "the look and the checks took 1 m 06 s of the 1 m 15 s"),
        (None, "importing, probing and checking took 1 m 06 s of the 1 m 15 s"),
    ],
)
def test_where_that_is_the_baseline_the_budget_that_would_do_is_told(seen: Any, told: str) -> None:
    """With what was spent before it: of a script, by its way to the loop, too."""
    burst = make_burst(None, outcome=Outcome.TIMEOUT, reason="no time was left")
    log = SimpleNamespace(trials=[Trial(burst, "baseline", "")], incumbent=lambda: None, objective=SAMPLES_PER_SECOND)
    setting = SimpleNamespace(
        facts=None, hardware=None, prepared_seconds=66.0, checked_seconds=0.1, seen=seen,
        options=SimpleNamespace(budget_seconds=75.0),
    )  # fmt: skip
    with pytest.raises(NothingFeasibleError, match="ended as timeout: no time was left") as raised:
        make_result(
            cast("Any", SimpleNamespace(log=log, baseline=burst.point, baseline_trains=False)), cast("Any", setting),
            Findings(stopped_by="budget"), tried=(), notes=(), seconds=75.0,
        )  # fmt: skip
    assert told in str(raised.value)
    budget = float(str(raised.value).partition("--budget ")[2].partition("s")[0])
    assert budget > 66 + (10 * 20 if seen is not None else 0)
