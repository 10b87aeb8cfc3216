"""Players that share a process: they take turns on the same samples, and each is judged as it would be alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Burst, Point
from tests.conftest import RunnerOf

PLAN = BurstPlan(measure_seconds=1.0)
WHOLE = PLAN.model_copy(update={"fastest_wins": False})
SECONDS = 60.0


def point(batch_size: int, workers: int = 0, **parameters: object) -> Point:
    """A config of 32 samples a step; with smaller batches it takes more steps that each take as long."""
    knobs = {"num_workers": workers, "prefetch_factor": 4} if workers else {}
    config = TrainConfig(batch_size=batch_size, accumulation_steps=32 // batch_size, **knobs)  # type: ignore[arg-type]
    return Point.model_validate({"config": config, "parameters": parameters})


@pytest.fixture
def runner(runner_of: RunnerOf) -> Iterator[ProcessRunner]:
    """Runs a workload that says what each player reads and trains on."""
    runner = runner_of("tests.workloads.paced:build")
    yield runner
    runner.close()


def challenge(
    runner: ProcessRunner, incumbent: Point | None, *candidates: Point, plan: BurstPlan = PLAN
) -> list[tuple[Burst, Pair | None]]:
    """A challenge; all candidates end well."""
    played = runner.challenge(incumbent, candidates, plan, SECONDS, lambda *_: None)
    assert [burst.reason for burst, _ in played] == [None] * len(candidates)
    return played


def hosts() -> set[int]:
    """Process ids of all hosts: what lives right below the forkserver."""
    return {one.pid for child in psutil.Process().children() for one in child.children()}


def promoted(played: list[tuple[Burst, Pair | None]]) -> list[bool]:
    """Whether each candidate may take the incumbent's place; a hopeless one leaves early."""
    return [pair is not None and pair.promotes and pair.ratio > 1.2 for _, pair in played]


def test_candidates_share_a_process_and_each_gets_its_own_verdict(runner: ProcessRunner) -> None:
    """Steps take as long whatever the batch: half the batch is half as fast, twice the batch twice.

    The winner plays on in the same process, against the next; the one before has left.
    """
    challenge(runner, None, point(16))
    before = hosts()
    assert len(before) == 1
    played = challenge(runner, point(16), point(8), point(32))
    assert promoted(played) == [False, True]
    assert promoted(challenge(runner, point(32), point(8), point(16))) == [False, False]
    assert hosts() == before


def test_two_configs_that_train_alike_are_not_told_apart(runner: ProcessRunner) -> None:
    """They differ in a knob that does nothing for steps that sleep."""
    same = Point(config=point(32).config.replace(num_threads=1))
    challenge(runner, None, point(32), plan=WHOLE)
    ((_, pair),) = challenge(runner, point(32), same, plan=WHOLE)
    assert pair is not None
    assert pair.ci95.low <= 1 <= pair.ci95.high or abs(pair.ratio - 1) < 0.1


def test_players_train_the_same_samples(runner: ProcessRunner, tmp_path: Path) -> None:
    """Whatever their micro-batches and their workers, both end at the same place, and have come there the same way."""
    log = str(tmp_path / "log")
    challenge(runner, None, point(32, log=log), plan=WHOLE)
    challenge(runner, point(32, log=log), point(8, workers=1, log=log), plan=WHOLE)
    trained: dict[int, list[str]] = {8: [], 32: []}
    for line in (tmp_path / "log.trained").read_text().splitlines():
        trained[len(line.split())] += line.split()
    assert len(trained[8]) > 256
    assert trained[8][-256:] == trained[32][-256:]


def test_workers_of_a_player_that_does_not_play_read_nothing(runner: ProcessRunner, tmp_path: Path) -> None:
    """Their queues would fill meanwhile, and flatter its next block."""
    log = str(tmp_path / "log")
    slow = {"log": log, "read_seconds": 0.001}
    challenge(runner, None, point(32, workers=1, **slow), plan=WHOLE)
    challenge(runner, point(32, workers=1, **slow), point(8, workers=1, **slow), plan=WHOLE)
    reads = sorted(tuple(line.split()) for line in (tmp_path / "log.read").read_text().splitlines())
    last = [reader for _, reader in reads][-1000:]
    assert len(set(last)) == 2  # one worker of each
    turns = sum(one != other for one, other in itertools.pairwise(last))
    assert turns < len(last) / 4  # every second read would be the other's


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(point(32, step_seconds=0.002), id="an argument of build()", marks=pytest.mark.slow),
        pytest.param(Point(config=point(32).config.replace(allocator="tuned")), id="the allocator"),
    ],
)
def test_what_only_a_new_process_has_gets_a_host_of_its_own(runner: ProcessRunner, other: Point) -> None:
    """The incumbent's host lives on beside it, and after it."""
    challenge(runner, None, point(16))
    before = hosts()
    challenge(runner, point(16), other)
    assert before < hosts()
    challenge(runner, point(16), point(8))
    assert hosts() == before


def test_workers_read_a_file_that_their_host_has_opened(runner_of: RunnerOf) -> None:
    """The incumbent reads in the host itself, whose open file its later workers inherit."""
    runner = runner_of("tests.workloads.kept_open:build")
    challenge(runner, point(32), point(32, workers=2), point(32, workers=1))
    assert len(hosts()) == 1
    runner.close()
