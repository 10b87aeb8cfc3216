"""A real memory target on a CPU: batches near it train in processes of their own before they join others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.progress import Progress
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search.bursts import Bursts
from autotune.search.proposal import Proposal
from autotune.search.stopping import Budget
from autotune.search.trials import TrialLog
from tests.search.surface import make_space

PLAN = BurstPlan(measure_seconds=0.3, fastest_wins=False)
SECONDS = 60.0
LEFT_BYTES = 300 * 2**20
"""The target leaves this much beyond what the smallest batch takes."""


def point(batch_size: int, lock: Path | None = None) -> Point:
    """A batch, of which each sample takes a megabyte."""
    return Point(config=TrainConfig(batch_size=batch_size), parameters={"lock": str(lock)} if lock else {})


@pytest.fixture
def limit_bytes(server: Isolation) -> int:
    """A target that leaves room for 300 more samples than the smallest batch has."""
    burst = ProcessRunner(server, "cpu").run(point(16), PLAN, SECONDS)
    assert burst.measurement is not None, burst.reason
    return (burst.measurement.device_memory_bytes or 0) + LEFT_BYTES


@pytest.fixture
def server(forkserver: Isolation, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    """Forks what trains a workload whose samples take a megabyte each."""
    monkeypatch.setattr(forkserver, "target", "tests.workloads.greedy:build")
    return forkserver


@pytest.mark.slow
def test_what_runs_out_of_memory_near_the_target_ends_alone(
    server: Isolation, limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fits is measured by itself, and then plays beside the incumbent; what does not has never joined it.

    A small batch joins at once. Whether it stays there depends on the holes in the heap that all share: the limit may
    end that process, and the batch runs alone.
    """
    runner = ProcessRunner(server, "cpu", memory_limit_bytes=limit_bytes)
    space = make_space(effective_batch=None, facts={"baseline": TrainConfig(batch_size=16)})
    log = TrialLog(optuna.create_study(direction="maximize"), space)
    bursts = Bursts(point(16), runner, log, Budget(600.0), Progress(), "cpu", limit_bytes)
    joined: list[Point] = []
    join = runner.challenge

    def joins(incumbent: Point | None, candidates: Sequence[Point], *of: Any) -> list[tuple[Burst, Pair | None]]:
        joined.extend(candidates)
        return join(incumbent, candidates, *of)

    monkeypatch.setattr(runner, "challenge", joins)
    sizes = (16, 256, 512, 64)
    try:
        came = [bursts.search(Proposal(point(size), "batch", "")) for size in sizes]
    finally:
        runner.close()
    assert [burst.outcome for burst in came] == [Outcome.OK, Outcome.OK, Outcome.OOM, Outcome.OK]
    assert joined == [point(16), point(256), point(64)]
    first, fits = (burst.measurement for burst in came[:2] if burst.measurement is not None)
    assert fits.device_memory_bytes is not None
    assert limit_bytes >= fits.device_memory_bytes > (first.device_memory_bytes or 0) + LEFT_BYTES / 2


def test_where_memory_holds_one_process_a_round_keeps_to_the_target(
    server: Isolation, limit_bytes: int, tmp_path: Path
) -> None:
    """One fresh process holds both sides and the target holds for both: what ends well in it fits alone."""
    runner = ProcessRunner(server, "cpu", memory_limit_bytes=limit_bytes)
    lock = tmp_path / "lock"
    bursts = runner.play([point(16, lock), point(48, lock)], PLAN, SECONDS)
    assert [burst.outcome for burst in bursts] == [Outcome.OK] * 2, [burst.reason for burst in bursts]
    assert len(lock.read_text().splitlines()) == 2  # the one that stood alone, then that of both
    outcomes = [burst.outcome for burst in runner.play([point(16, lock), point(512, lock)], PLAN, SECONDS)]
    assert outcomes[1] is Outcome.OOM


def test_what_comes_and_goes_in_a_step_counts_once(server: Isolation) -> None:
    """However the looks at memory fall into the steps, runs of one config agree on what it takes."""
    runner = ProcessRunner(server, "cpu")
    bursts = [runner.run(point(256), PLAN, SECONDS) for _ in range(3)]
    taken = [burst.measurement.device_memory_bytes or 0 for burst in bursts if burst.measurement is not None]
    assert len(taken) == len(bursts)
    assert max(taken) < 1.1 * min(taken)
