"""The incumbent lives between challenges; candidates train the samples that it trains, and winners stay."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psutil
import pytest

from autotune.bursts.isolation import Isolation
from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.errors import Interrupted
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Burst, Outcome, Point
from tests.conftest import RunnerOf

SECONDS = 60.0
PLAN = BurstPlan(warmup_seconds=0.3, measure_seconds=0.6)
SLEEPY = "tests.workloads.sleepy:build"


def sleeping(seconds: float) -> Point:
    """A config whose steps sleep for so long; below 0 they cannot be taken."""
    return Point(config=TrainConfig(batch_size=4), parameters={"step_seconds": seconds, "batch_size": 4})


SLOW, FAST = sleeping(0.02), sleeping(0.005)


@pytest.fixture
def runner(runner_of: RunnerOf) -> Iterator[ProcessRunner]:
    """Runs a workload whose steps sleep, so that it is known which config is the faster one."""
    runner = runner_of(SLEEPY)
    yield runner
    runner.close()


def challenge(runner: ProcessRunner, incumbent: Point | None, candidate: Point) -> tuple[Burst, Pair | None]:
    """A challenge, of which nobody is told."""
    return runner.challenge(incumbent, candidate, PLAN, SECONDS, lambda _: None)


def runners() -> set[int]:
    """Process ids of all that live below the forkserver."""
    return {one.pid for child in psutil.Process().children() for one in child.children(recursive=True)}


def test_the_first_becomes_the_incumbent_and_lives(runner: ProcessRunner) -> None:
    """It trains alone, and its process stays."""
    burst, pair = challenge(runner, None, SLOW)
    assert burst.outcome is Outcome.OK
    assert pair is None
    assert len(runners()) == 1


def test_a_faster_candidate_takes_the_incumbents_place(runner: ProcessRunner) -> None:
    """It is beyond doubt, its own process lives on, and the other one has gone."""
    challenge(runner, None, SLOW)
    before = runners()
    burst, pair = challenge(runner, SLOW, FAST)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "faster"
    assert pair.ratio > 2  # 4, but for what a busy machine adds to each step
    after = runners()
    assert len(after) == 1
    assert not after & before
    challenge(runner, FAST, SLOW)
    assert runners() == after


def test_a_clear_loser_is_let_go_early(runner: ProcessRunner) -> None:
    """Long before its time is spent, and the incumbent lives on."""
    challenge(runner, None, FAST)
    before = runners()
    looks: list[Pair] = []
    burst, pair = runner.challenge(FAST, SLOW, PLAN.model_copy(update={"measure_seconds": 6.0}), SECONDS, looks.append)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "slower"
    assert looks[-1] == pair
    assert burst.seconds < 2 * 6
    assert runners() == before


def test_long_blocks_are_played_until_they_say_something(runner: ProcessRunner) -> None:
    """The planned time holds a block or two, of which nothing would follow; four times the speed shows in three."""
    plan = PLAN.model_copy(update={"measure_seconds": 0.3})
    runner.challenge(None, sleeping(0.4), plan, SECONDS, lambda _: None)
    burst, pair = runner.challenge(sleeping(0.4), sleeping(0.1), plan, SECONDS, lambda _: None)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "faster"


def test_a_candidate_warms_up_alone(runner: ProcessRunner) -> None:
    """Its first turn beside the incumbent counts at once, but for one in which both find their caches cold."""
    plan = PLAN.model_copy(update={"turn_seconds": 0.05, "fastest_wins": False})
    looks: list[Pair] = []
    runner.challenge(None, SLOW, plan, SECONDS, lambda _: None)
    runner.challenge(SLOW, sleeping(0.021), plan, SECONDS, looks.append)
    assert len(looks) >= 5  # a quarter of the plan's time, three turns, would have been lost for both


def test_where_the_faster_need_not_be_the_better_nothing_ends_early(runner: ProcessRunner) -> None:
    """All the planned time is spent, and the incumbent stays: what is better is judged elsewhere."""
    plan = PLAN.model_copy(update={"fastest_wins": False, "measure_seconds": 0.75, "turn_seconds": 0.05})
    runner.challenge(None, SLOW, plan, SECONDS, lambda _: None)
    before = runners()
    burst, pair = runner.challenge(SLOW, FAST, plan, SECONDS, lambda _: None)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "faster"
    assert pair.blocks >= 6  # it was clear after three, of fifteen, half of which may be cut as warm-up
    assert runners() == before


def test_an_incumbent_that_was_killed_is_started_again(runner: ProcessRunner) -> None:
    """Somebody's kill costs a start, and no candidate is blamed for it."""
    challenge(runner, None, SLOW)
    (alive,) = runners()
    psutil.Process(alive).kill()
    time.sleep(0.2)
    challenge(runner, SLOW, FAST)
    burst, pair = challenge(runner, SLOW, FAST)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "faster"


def test_computing_alone_is_no_incumbent_for_the_whole(runner: ProcessRunner) -> None:
    """Should the incumbent have died beside it, what computes alone lives on: a new whole one plays the next."""
    runner.challenge(None, SLOW, PLAN.model_copy(update={"part": "compute"}), SECONDS, lambda _: None)
    before = runners()
    challenge(runner, SLOW, sleeping(0.025))
    assert len(runners()) == 1
    assert not runners() & before


@pytest.mark.parametrize(("seconds", "outcome"), [(-1.0, Outcome.CRASHED), (1000.0, Outcome.TIMEOUT)])
def test_a_candidate_that_fails_leaves_the_incumbent_alone(
    runner: ProcessRunner, seconds: float, outcome: Outcome
) -> None:
    """It ends as what befell it, and nothing of it is left; the incumbent plays on against the next."""
    challenge(runner, None, SLOW)
    before = runners()
    burst, pair = runner.challenge(SLOW, sleeping(seconds), PLAN, 4.0, lambda _: None)
    assert burst.outcome is outcome
    assert pair is None
    assert runners() == before
    assert challenge(runner, SLOW, FAST)[0].ok


def test_a_candidate_takes_its_first_steps_while_others_play(runner: ProcessRunner) -> None:
    """It is ready when it is challenged with, and the duets meanwhile are what they would be without it."""
    late = sleeping(0.5)
    challenge(runner, None, SLOW)
    runner.prepare(late, PLAN)
    assert not runner.is_prepared
    _, pair = challenge(runner, SLOW, FAST)
    assert pair is not None
    assert pair.verdict == "faster"
    deadline = time.monotonic() + SECONDS
    while not runner.is_prepared and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(runners()) == 2
    burst, pair = challenge(runner, FAST, late)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "slower"
    assert len(runners()) == 1


def test_what_fails_beside_others_is_told_when_its_turn_comes(runner: ProcessRunner) -> None:
    """Its crash is its own outcome; the incumbent plays on."""
    challenge(runner, None, SLOW)
    runner.prepare(sleeping(-1.0), PLAN)
    challenge(runner, SLOW, sleeping(0.03))
    burst, pair = challenge(runner, SLOW, sleeping(-1.0))
    assert burst.outcome is Outcome.CRASHED
    assert pair is None
    assert challenge(runner, SLOW, FAST)[0].ok


def test_an_interruption_ends_both_sides() -> None:
    """Ctrl-C in the middle of a challenge leaves neither the candidate nor the incumbent."""
    with Isolation(SLEEPY) as isolation:
        isolation.start(SECONDS)
        runner = ProcessRunner(isolation, "cpu")
        challenge(runner, None, SLOW)
        with pytest.raises(Interrupted):
            runner.challenge(SLOW, FAST, PLAN, SECONDS, lambda _: isolation.interrupt())
        assert runners() == set()


def test_closing_ends_all(runner: ProcessRunner) -> None:
    """Neither the incumbent nor what was being prepared lives on."""
    challenge(runner, None, SLOW)
    runner.prepare(FAST, PLAN)
    runner.close()
    assert runners() == set()
