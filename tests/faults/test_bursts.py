"""Faults in one burst: the outcome tells what happened, the next burst runs, and nothing is left behind."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from autotune.bursts import cleanup
from autotune.bursts.isolation import Isolation
from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search.trials import TrialLog
from tests.faults.residue import Residue
from tests.faults.scenarios import PACKAGE, SCENARIOS, Scenario, fault
from tests.search.surface import make_space

PLAN = BurstPlan(warmup_seconds=0.3, measure_seconds=0.3, block_seconds=0.02)
START_SECONDS = 60.0
OVERRUN_SECONDS = 5.0


class Server:
    """One forkserver at a time, shared by the scenarios of a module: each shows that it survives them all."""

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self._module = ""
        self._isolation: Isolation | None = None

    def isolation(self, module: str) -> Isolation:
        """The forkserver of a module of workloads."""
        if self._isolation is None or self._module != module:
            self.close()
            self._module, self._isolation = module, Isolation(f"{PACKAGE}.{module}:healthy")
            self._isolation.start(START_SECONDS)
        return self._isolation

    def close(self) -> None:
        """Ends it; its folder must go with it."""
        if self._isolation is not None:
            self._isolation.close()
            self._isolation = None
            assert Residue(self._temporary).folders() == []


@pytest.fixture(scope="module")
def server(temporary: Path) -> Iterator[Server]:
    """The forkservers."""
    server = Server(temporary)
    yield server
    server.close()


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


def run(isolation: Isolation, scenario: Scenario) -> Burst:
    """The burst of a scenario."""
    config = TrainConfig(batch_size=32, num_workers=scenario.workers, compile_mode=scenario.compile_mode)
    isolation.target = scenario.target
    runner = ProcessRunner(isolation, "cpu", memory_limit_bytes=scenario.memory_limit_bytes)
    return runner.run(Point(config=config), PLAN, scenario.deadline_seconds)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.where)
def test_a_fault_is_told_and_survived(
    scenario: Scenario, server: Server, temporary: Path, notes: Path, counters: Path
) -> None:
    """The outcome and its reason are the expected ones; the next burst is well; nothing is left."""
    residue = Residue(temporary)
    notes.write_text("")
    counters.write_text("oom_kill 7\n")
    isolation = server.isolation(scenario.module)
    began = time.monotonic()
    burst = run(isolation, scenario)
    assert time.monotonic() - began <= scenario.deadline_seconds + OVERRUN_SECONDS
    assert burst.outcome is scenario.outcome, burst.reason
    assert scenario.words in (burst.reason or "")
    assert (burst.measurement is not None) == (burst.outcome is Outcome.OK)
    healthy = run(isolation, Scenario(f"{scenario.module}:healthy", "", Outcome.OK))
    assert healthy.outcome is Outcome.OK, healthy.reason
    assert isolation._forkserver is not None
    assert residue.found(spare=isolation._forkserver.pid, pids=notes) == []


@fault("Compiling", "the model breaks the compiler's graph, and has it compile again", "ok; both are counted and told")
def test_graph_breaks_and_recompilations_are_seen_and_told(server: Server) -> None:
    """The measurement holds the counts, and a note says it once."""
    scenario = Scenario(
        "compiling:breaks_and_recompiles", "", Outcome.OK, compile_mode="default", deadline_seconds=100.0
    )
    burst = run(server.isolation("compiling"), scenario)
    assert burst.outcome is Outcome.OK, burst.reason
    assert burst.measurement is not None
    assert (burst.measurement.graph_breaks or 0) >= 1
    assert (burst.measurement.recompiles or 0) >= 1
    told: list[str] = []
    log = TrialLog(optuna.create_study(direction="maximize"), make_space(), told.append)
    for _ in range(2):
        log.run(burst.point, "stage", "reason", lambda: burst)
    assert [note for note in told if "TORCH_LOGS=graph_breaks,recompiles" in note] == told[:1] == told


@pytest.mark.parametrize("where", ["leaving:daemon", "leaving:subprocess_running", "ends:exit_quietly"])
@fault("What a burst leaves behind", "a daemon, a subprocess, os._exit(0), where there is no forkserver", "as with one")
def test_fresh_interpreters_leave_nothing_either(where: str, server: Server, temporary: Path, notes: Path) -> None:
    """What other systems do instead of forking: what has lost its parents is found by its mark."""
    server.close()
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


@fault("What a burst leaves behind", "TMPDIR is too long for a socket's name", "ok: a shorter one is used, and removed")
def test_a_long_temporary_folder_does_not_hang_the_workers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that hand over tensors through sockets would wait for ever, without a word."""
    server.close()
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
