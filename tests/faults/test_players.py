"""Faults of one player of several in one process: the others play on, in the next challenge too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from tests.faults.residue import Residue
from tests.faults.scenarios import PACKAGE, PLAYERS, Scenario
from tests.processes import slowness

PLAN = BurstPlan(measure_seconds=0.3, fastest_wins=False)
SECONDS = 90.0
START_SECONDS = 60.0
HANG_SECONDS = 4.0
USUAL = {"players:raises", "players:nan_loss", "players:killed", "players:worker_killed_while_held"}
"""Faults that every run of the tests tries."""


@pytest.fixture(scope="module")
def server(temporary: Path) -> Iterator[Isolation]:
    """The one forkserver of all scenarios. Its folder must go with it."""
    with Isolation(f"{PACKAGE}.base:healthy") as isolation:
        isolation.start(START_SECONDS)
        yield isolation
    assert Residue(temporary).folders() == []


def point(batch_size: int, workers: int = 0) -> Point:
    """A config of 32 samples a step."""
    return Point(config=TrainConfig(batch_size=batch_size, accumulation_steps=32 // batch_size, num_workers=workers))


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(one, id=one.where, marks=() if one.where in USUAL else pytest.mark.slow) for one in PLAYERS],
)
def test_a_players_fault_is_its_own(
    scenario: Scenario, server: Isolation, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is out with its outcome; another candidate and the incumbent play on; nothing is left."""
    monkeypatch.setattr("autotune.bursts.turns.player.HANG_SECONDS", HANG_SECONDS * slowness())
    residue = Residue(temporary)
    server.target = scenario.target
    runner = ProcessRunner(server, "cpu", memory_limit_bytes=scenario.memory_limit_bytes)
    incumbent, faulty, other = point(32), point(8, scenario.workers), point(16)
    try:
        (burst, pair), (healthy, its_pair) = runner.challenge(
            incumbent, [faulty, other], PLAN, SECONDS, lambda *_: None
        )
        assert burst.outcome is scenario.outcome, burst.reason
        assert scenario.words in (burst.reason or "")
        assert (pair is not None) == (scenario.outcome is Outcome.OK)
        assert healthy.outcome is Outcome.OK, healthy.reason
        assert its_pair is not None
        ((again, _),) = runner.challenge(incumbent, [other], PLAN, SECONDS, lambda *_: None)
        assert again.outcome is Outcome.OK, again.reason
    finally:
        runner.close()
    assert server._forkserver is not None
    assert residue.found(spare=server._forkserver.pid) == []
