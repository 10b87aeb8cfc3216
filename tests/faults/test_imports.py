"""Faults of a module while it is imported: told as an error within the deadline, or lived with."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.errors import WorkloadError
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from tests.faults.residue import Residue
from tests.faults.scenarios import IMPORTING, PACKAGE, Importing
from tests.processes import slowness

PLAN = BurstPlan(measure_seconds=0.1)
BURST_SECONDS = 60.0
GRACE_SECONDS = 10.0


def target_of(scenario: Importing) -> str:
    """The module, by its name or by its file."""
    dotted = f"{PACKAGE}.at_import.{scenario.module}"
    return f"{dotted.replace('.', '/')}.py:build" if scenario.by_path else f"{dotted}:build"


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(scenario, id=scenario.module, marks=() if scenario.module == "raises" else pytest.mark.slow)
        for scenario in IMPORTING
    ],
)
def test_an_import_is_told_or_lived_with(
    scenario: Importing, temporary: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error names what happened; else bursts run, with the reason why they import again, if they do."""
    residue = Residue(temporary)
    notes.write_text("")
    pause_seconds = scenario.pause_seconds * slowness()
    monkeypatch.setenv("FAULTS_PAUSE", str(pause_seconds))
    grace_seconds = GRACE_SECONDS * slowness()  # torch's own import is in it
    began = time.monotonic()
    with Isolation(target_of(scenario)) as isolation:
        if scenario.error is not None:
            with pytest.raises(WorkloadError, match=scenario.error):
                isolation.start(scenario.deadline_seconds)
            assert time.monotonic() - began <= scenario.deadline_seconds + grace_seconds
        else:
            isolation.start(scenario.deadline_seconds)
            assert (scenario.unsafe or "") in (isolation.fork_unsafe_reason or "")
            assert (scenario.unsafe is None) == (isolation.fork_unsafe_reason is None)
            runner = ProcessRunner(isolation, "cpu")
            point = Point(config=TrainConfig(batch_size=32, num_workers=scenario.workers))
            for number in range(scenario.bursts):
                time.sleep(number * pause_seconds)
                burst = runner.run(point, PLAN, BURST_SECONDS)
                assert burst.outcome is scenario.outcome, burst.reason
    assert residue.found(pids=notes) == []
    assert residue.folders() == []


@pytest.mark.slow
def test_a_module_that_is_gone_costs_a_burst_and_not_the_search(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forkserver that must be replaced when the module's file has been deleted: the burst has crashed, no more."""
    residue = Residue(temporary)
    shutil.copy(Path(__file__).parent / "workloads" / "at_import" / "deletes_itself.py", tmp_path / "vanishing.py")
    monkeypatch.chdir(tmp_path)
    with Isolation("vanishing:build") as isolation:
        isolation.start(BURST_SECONDS)
        runner = ProcessRunner(isolation, "cpu")
        bursts = [runner.run(Point(config=TrainConfig()), PLAN, BURST_SECONDS) for _ in range(2)]
    assert [burst.outcome for burst in bursts] == [Outcome.CRASHED, Outcome.CRASHED]
    assert "SIGKILL" in (bursts[0].reason or "")
    assert "there is no module" in (bursts[1].reason or "")
    assert residue.found() == []
