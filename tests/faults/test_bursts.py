"""Faults in one burst: the outcome tells what happened, the next burst runs, and nothing is left behind."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.runner import ProcessRunner
from autotune.bursts.turns.duet import play_round
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search.trials import TrialLog
from tests.faults.residue import Residue
from tests.faults.scenarios import PACKAGE, SCENARIOS, Scenario, fault
from tests.search.surface import make_space

PLAN = BurstPlan(measure_seconds=0.3)
SHORT = BurstPlan(measure_seconds=0.1)
START_SECONDS = 60.0
OVERRUN_SECONDS = 5.0
PARTNER_SECONDS = 20.0
USUAL = {
    "memory:in_forward", "memory:killed_by_the_kernel", "memory:worker_bus_error", "ends:killed", "ends:worker_killed",
    "raising:in_loss", "raising:nan_loss", "hangs:in_forward", "leaving:daemon",
    "compiling:no_compiler", "ranks:killed",
}  # fmt: skip
"""Scenarios that every run of the tests tries."""
BESIDE = USUAL - {"compiling:no_compiler"} | {
    "memory:in_build", "ends:stops_forkserver", "ends:kills_forkserver", "ends:stops_itself", "ends:forks_in_build",
    "hangs:in_build", "hangs:in_worker", "leaving:deaf_subprocess", "leaving:shared_tensors",
    "ranks:stops_itself", "ranks:raises_in_loss",
}  # fmt: skip
"""Scenarios that are tried beside a partner too: those in which two live jobs could get into each other's way."""


@pytest.fixture(scope="module")
def server(temporary: Path, notes: Path, counters: Path) -> Iterator[Isolation]:
    """The one forkserver of all scenarios: each shows that it survives them. Its folder must go with it."""
    with Isolation(f"{PACKAGE}.base:healthy") as isolation:
        isolation.start(START_SECONDS)
        yield isolation
    assert Residue(temporary).folders() == []


@pytest.fixture(scope="module", autouse=True)
def counters(temporary: Path) -> Iterator[Path]:
    """A stand-in for the kernel's counters: only a real shortage of memory would move those."""
    file = temporary / "vmstat"
    file.write_text("oom_kill 7\n")
    os.environ["FAULTS_VMSTAT"] = str(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "KERNEL_COUNTERS", file)
        yield file
    del os.environ["FAULTS_VMSTAT"]


def run(isolation: Isolation, scenario: Scenario, plan: BurstPlan = PLAN) -> Burst:
    """The burst of a scenario."""
    config = TrainConfig(
        batch_size=32, num_workers=scenario.workers, compile_mode=scenario.compile_mode, ranks=scenario.ranks
    )
    isolation.target = scenario.target
    runner = ProcessRunner(isolation, "cpu", memory_limit_bytes=scenario.memory_limit_bytes)
    return runner.run(Point(config=config), plan, scenario.deadline_seconds)


def rows() -> list[Any]:
    """The scenarios: one of each outcome is tried every time, with a few that are cheap, the whole matrix on demand."""
    return [
        pytest.param(scenario, id=scenario.where, marks=() if scenario.where in USUAL else pytest.mark.slow)
        for scenario in SCENARIOS
    ]


def test_each_outcome_is_tried_every_time() -> None:
    """A default run of the tests sees a fault of every kind end as it should."""
    tried = {scenario.outcome for scenario in SCENARIOS if scenario.where in USUAL}
    assert tried == set(Outcome)


@pytest.mark.parametrize("scenario", rows())
def test_a_fault_is_told_and_survived(
    scenario: Scenario, server: Isolation, temporary: Path, notes: Path, counters: Path
) -> None:
    """The outcome and its reason are the expected ones; the next burst is well; nothing is left."""
    residue = Residue(temporary)
    notes.write_text("")
    counters.write_text("oom_kill 7\n")
    began = time.monotonic()
    burst = run(server, scenario)
    assert time.monotonic() - began <= scenario.deadline_seconds + OVERRUN_SECONDS
    assert burst.outcome is scenario.outcome, burst.reason
    assert scenario.words in (burst.reason or "")
    assert (burst.measurement is not None) == (burst.outcome is Outcome.OK)
    healthy = run(server, Scenario("base:healthy", "", Outcome.OK), SHORT)
    assert healthy.outcome is Outcome.OK, healthy.reason
    assert server._forkserver is not None
    assert residue.found(spare=server._forkserver.pid, pids=notes) == []


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.where in BESIDE], ids=lambda one: one.where)
def test_a_fault_beside_a_partner_is_no_harm_to_it(
    scenario: Scenario, server: Isolation, temporary: Path, notes: Path, counters: Path
) -> None:
    """A live runner ends as a burst of its own would; its partner trains to its end; nothing is left."""
    residue = Residue(temporary)
    notes.write_text("")
    counters.write_text("oom_kill 7\n")
    config = TrainConfig(
        batch_size=32, num_workers=scenario.workers, compile_mode=scenario.compile_mode, ranks=scenario.ranks
    )
    sides = [(scenario.target, config), (f"{PACKAGE}.base:healthy", TrainConfig(batch_size=32))]
    requests = [
        Request(
            job="host", target=target, device="cpu", plan=PLAN, point=Point(config=config),
            memory_limit_bytes=scenario.memory_limit_bytes,
        )
        for target, config in sides
    ]  # fmt: skip
    deadline = time.monotonic() + scenario.deadline_seconds + PARTNER_SECONDS
    faulty, partner = play_round(server, requests, PLAN, deadline, seed=0)
    assert time.monotonic() <= deadline + OVERRUN_SECONDS
    if scenario.where == "ends:stops_forkserver":  # commands go through it: both sides hang, and go with it
        assert faulty.outcome in {Outcome.TIMEOUT, Outcome.CRASHED}
    else:
        assert faulty.outcome is scenario.outcome, faulty.reason
    if "forkserver" not in scenario.where:  # with it both sides go, and the next job starts another
        assert partner.outcome is Outcome.OK, partner.reason
    assert run(server, Scenario("base:healthy", "", Outcome.OK), SHORT).outcome is Outcome.OK
    assert server._forkserver is not None
    assert residue.found(spare=server._forkserver.pid, pids=notes) == []


@pytest.mark.slow
@fault("Compiling", "the model breaks the compiler's graph, and has it compile again", "ok; both are counted and told")
def test_graph_breaks_and_recompilations_are_seen_and_told(server: Isolation) -> None:
    """The measurement holds the counts, and a note says it once."""
    scenario = Scenario(
        "compiling:breaks_and_recompiles", "", Outcome.OK, compile_mode="default", deadline_seconds=100.0
    )
    burst = run(server, scenario)
    assert burst.outcome is Outcome.OK, burst.reason
    assert burst.measurement is not None
    assert (burst.measurement.graph_breaks or 0) >= 1
    assert (burst.measurement.recompiles or 0) >= 1
    told: list[str] = []
    log = TrialLog(optuna.create_study(direction="maximize"), make_space(), told.append)
    for _ in range(2):
        log.record(burst, "stage", "reason")
    assert [note for note in told if "TORCH_LOGS=graph_breaks,recompiles" in note] == told[:1] == told


@pytest.mark.slow
@pytest.mark.parametrize("where", ["leaving:daemon", "leaving:subprocess_running", "ends:exit_quietly"])
@fault("What a burst leaves behind", "a daemon, a subprocess, os._exit(0), where there is no forkserver", "as with one")
def test_fresh_interpreters_leave_nothing_either(
    where: str, notes: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other systems do instead of forking: what has lost its parents is found by its mark."""
    temporary = tmp_path_factory.mktemp("own")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    scenario = next(scenario for scenario in SCENARIOS if scenario.where == where)
    residue = Residue(temporary)
    notes.write_text("")
    with Isolation(scenario.target) as isolation:
        isolation._spawning = True
        burst = run(isolation, scenario)
        assert burst.outcome is scenario.outcome, burst.reason
        assert burst.seconds < scenario.deadline_seconds
        assert residue.found(pids=notes) == []
    assert residue.folders() == []


@pytest.mark.slow
@fault("What a burst leaves behind", "TMPDIR is too long for a socket's name", "ok: a shorter one is used, and removed")
def test_a_long_temporary_folder_does_not_hang_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that hand over tensors through sockets would wait for ever, without a word."""
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with Isolation(f"{PACKAGE}.leaving:healthy") as isolation:
        isolation.start(START_SECONDS)
        burst = run(isolation, Scenario("leaving:healthy", "", Outcome.OK, workers=1))
        folder = isolation._folder
    assert burst.outcome is Outcome.OK, burst.reason
    assert len(str(folder)) < len(str(long))
    assert not folder.exists()
