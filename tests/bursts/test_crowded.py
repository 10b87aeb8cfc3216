"""Where two processes find no room beside each other: one host plays both, or whole bursts take turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import NO_ROOM, ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.ratios import paired
from autotune.measuring.records import Burst, Outcome, Point
from tests.bursts import solo
from tests.conftest import RunnerOf
from tests.workloads import mistakes

PLAN = BurstPlan(measure_seconds=0.3)
SECONDS = 60.0


def point(folder: Path, raises: str = "MemoryError", **knobs: object) -> Point:
    """A config that one process at a time can train."""
    config = TrainConfig.model_validate({"batch_size": 8, **knobs})
    return Point(config=config, parameters={"folder": str(folder), "raises": raises})


def test_one_host_plays_a_round_that_memory_holds_only_once(runner_of: RunnerOf, tmp_path: Path) -> None:
    """The blocks of both are pairs."""
    notes: list[str] = []
    runner = runner_of("tests.workloads.crowded:build", note=notes.append)
    first, second = runner.play([point(tmp_path), point(tmp_path, batch_size=16)], PLAN, SECONDS)
    assert first.measurement is not None
    assert second.measurement is not None
    assert paired(first.measurement, second.measurement)
    assert notes == []


def test_whole_bursts_take_turns_where_no_host_plays_both(runner_of: RunnerOf, tmp_path: Path) -> None:
    """In that round and in all that follow; one note says so."""
    notes: list[str] = []
    runner = runner_of("tests.workloads.crowded:build", note=notes.append)
    points = [point(tmp_path), point(tmp_path, allocator="tuned")]
    for _ in range(2):
        bursts = runner.play(points, PLAN, SECONDS)
        assert [burst.point for burst in bursts] == points
        assert all(burst.ok for burst in bursts)
    assert notes == [NO_ROOM]


def test_what_runs_out_of_memory_alone_says_nothing_about_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Later rounds play block by block again."""
    notes: list[str] = []
    large, small = point(tmp_path, batch_size=64), point(tmp_path)

    def play(_: ProcessRunner, points: list[Point], *__: object) -> list[Burst]:
        outcomes = [Outcome.OOM if one is large else Outcome.OK for one in points]
        return [Burst(point=one, outcome=outcome, seconds=1.0) for one, outcome in zip(points, outcomes, strict=True)]

    monkeypatch.setattr(ProcessRunner, "_play", play)
    runner = solo.runner_of(mistakes.workload())
    monkeypatch.setattr(runner, "_note", notes.append)
    runner.play([large, small], PLAN, SECONDS)
    assert (runner._in_one_host, runner._one_by_one, notes) == (False, False, [])


@pytest.mark.parametrize("raises", ["MemoryError", "OSError"])
def test_a_candidate_that_fails_beside_the_incumbents_process_runs_alone(
    raises: str, runner_of: RunnerOf, tmp_path: Path
) -> None:
    """The incumbent does too, so that there is a ratio, which is less certain."""
    runner = runner_of("tests.workloads.crowded:build")
    incumbent, candidate = point(tmp_path, raises), point(tmp_path, raises, allocator="tuned")
    ((burst, pair),) = runner.challenge(incumbent, [candidate], PLAN, SECONDS, lambda *_: None)
    runner.close()
    assert burst.ok
    assert pair is not None
    assert pair.blocks == 0
    assert pair.ci95.low < pair.ratio < pair.ci95.high
