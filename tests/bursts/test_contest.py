"""The incumbent lives between challenges; candidates train the samples that it trains, and winners stay.

The seconds of a step are an argument of `build()` here, so each config has a host of its own. Configs that share a host
are in `test_hosts`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.hosts.running_job import Ended
from autotune.bursts.runner import ProcessRunner
from autotune.bursts.turns.contest import Contest
from autotune.bursts.turns.player import Player
from autotune.errors import Interrupted
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.ratios import Scatter
from autotune.measuring.records import Burst, Outcome, Point
from tests.bursts.solo import ReadyHost
from tests.conftest import RunnerOf

SECONDS = 60.0
PLAN = BurstPlan(measure_seconds=0.6)
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


def challenge(
    runner: ProcessRunner,
    incumbent: Point | None,
    candidate: Point,
    plan: BurstPlan = PLAN,
    looks: list[Pair] | None = None,
    seconds: float = SECONDS,
) -> tuple[Burst, Pair | None]:
    """A challenge of one candidate; `looks` takes what is known of it after each turn."""
    seen: list[Pair] = [] if looks is None else looks
    ((burst, pair),) = runner.challenge(incumbent, [candidate], plan, seconds, lambda _, pair: seen.append(pair))
    return burst, pair


def hosts() -> set[int]:
    """Process ids of all that live below the forkserver."""
    return {one.pid for child in psutil.Process().children() for one in child.children(recursive=True)}


def test_winners_live_on_losers_are_let_go_early_and_closing_ends_all(runner: ProcessRunner) -> None:
    """The first trains alone, and its process stays until what beat it beyond doubt has been challenged.

    A clear loser is let go long before its time is spent, and the winner's process lives on. A winner plays on after
    it is certain: all later candidates are measured against it, and a lucky one would spoil their figures.
    """
    burst, pair = challenge(runner, None, SLOW)
    assert (burst.outcome, pair) == (Outcome.OK, None)
    before = hosts()
    assert len(before) == 1
    looks: list[Pair] = []
    burst, pair = challenge(runner, SLOW, FAST, looks=looks)
    assert burst.ok
    assert pair is not None
    assert [look.verdict for look in looks].count("faster") > 1
    assert pair.verdict == "faster"
    assert pair.ratio > 2  # 4, but for what a busy machine adds to each step
    winner = hosts() - before
    assert len(winner) == 1
    looks.clear()
    burst, pair = challenge(runner, FAST, SLOW, PLAN.model_copy(update={"measure_seconds": 6.0}), looks)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "slower"
    assert looks[-1] == pair
    assert burst.seconds < 2 * 6
    assert hosts() == winner
    runner.close()
    assert hosts() == set()


def test_long_blocks_are_played_until_they_say_something(runner: ProcessRunner) -> None:
    """The planned time holds a block or two, of which nothing would follow; four times the speed shows in three."""
    plan = PLAN.model_copy(update={"measure_seconds": 0.3})
    challenge(runner, None, sleeping(0.4), plan)
    burst, pair = challenge(runner, sleeping(0.4), sleeping(0.1), plan)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "faster"


def test_a_candidate_warms_up_alone(runner: ProcessRunner) -> None:
    """Its first turn beside the incumbent counts at once, but for one in which both find their caches cold."""
    plan = PLAN.model_copy(update={"turn_seconds": 0.05, "fastest_wins": False})
    looks: list[Pair] = []
    challenge(runner, None, SLOW, plan)
    challenge(runner, SLOW, sleeping(0.021), plan, looks)
    assert len(looks) >= 5  # a quarter of the plan's time, three turns, would have been lost for both


def test_where_the_faster_need_not_be_the_better_nothing_ends_early(runner: ProcessRunner) -> None:
    """All the planned time is spent, and the incumbent stays: what is better is judged elsewhere."""
    plan = PLAN.model_copy(update={"fastest_wins": False, "measure_seconds": 0.75, "turn_seconds": 0.05})
    challenge(runner, None, SLOW, plan)
    before = hosts()
    burst, pair = challenge(runner, SLOW, FAST, plan)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "faster"
    assert pair.blocks >= 6  # it was clear after three, of fifteen, half of which may be cut as warm-up
    assert hosts() == before


def test_an_incumbent_that_was_killed_is_started_again(runner: ProcessRunner) -> None:
    """Somebody's kill costs a start, and no candidate is blamed for it."""
    challenge(runner, None, SLOW)
    (alive,) = hosts()
    psutil.Process(alive).kill()
    time.sleep(0.2)
    challenge(runner, SLOW, FAST)
    burst, pair = challenge(runner, SLOW, FAST)
    assert burst.ok
    assert pair is not None
    assert pair.verdict == "faster"


def test_computing_alone_is_no_incumbent_for_the_whole(runner: ProcessRunner) -> None:
    """Should the incumbent have died beside it, what computes alone lives on: a new whole one plays the next."""
    challenge(runner, None, SLOW, PLAN.model_copy(update={"part": "compute"}))
    before = hosts()
    challenge(runner, SLOW, sleeping(0.025))
    assert len(hosts()) == 1
    assert not hosts() & before


@pytest.mark.parametrize(
    ("seconds", "outcome"), [(-1.0, Outcome.CRASHED), pytest.param(1000.0, Outcome.TIMEOUT, marks=pytest.mark.slow)]
)
def test_a_candidate_that_fails_leaves_the_incumbent_alone(
    runner: ProcessRunner, seconds: float, outcome: Outcome
) -> None:
    """It ends as what befell it, and nothing of it is left; the incumbent plays on against the next."""
    challenge(runner, None, SLOW)
    before = hosts()
    burst, pair = challenge(runner, SLOW, sleeping(seconds), seconds=4.0)
    assert burst.outcome is outcome
    assert pair is None
    assert hosts() <= before  # a crash is tried again alone, without the incumbent beside it
    assert challenge(runner, SLOW, FAST)[0].ok


def test_an_interruption_ends_both_sides(
    runner: ProcessRunner, forkserver: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a challenge leaves neither the candidate nor the incumbent."""
    monkeypatch.setattr(forkserver, "_interrupted", False)  # as it is again for later tests
    challenge(runner, None, SLOW)
    with pytest.raises(Interrupted):
        runner.challenge(SLOW, [FAST], PLAN, SECONDS, lambda *_: forkserver.interrupt())
    assert hosts() == set()


def test_candidates_for_which_there_is_no_time_do_not_play(runner: ProcessRunner) -> None:
    """Where first steps take long, the last ones are missing, rather than all being cut off before they have played."""
    candidates = [sleeping(0.7 + number / 100) for number in range(4)]
    played = runner.challenge(None, candidates, PLAN, 6.0, lambda _point, _pair: None)
    assert 0 < len(played) < len(candidates)
    assert [burst.point for burst, _ in played] == candidates[: len(played)]


def contest_of(*hosts: ReadyHost) -> Contest:
    """A contest without candidates, whose incumbent has failed in the first of these hosts."""
    request = Request(job="host", point=SLOW)
    contest = Contest(None, [], request, [], PLAN, time.monotonic() + 60, Scatter(), lambda *_: None)  # type: ignore[arg-type]
    contest._incumbent = Player(hosts[0], request)  # type: ignore[arg-type]
    contest._incumbent.ended = Ended(timed_out=True)
    contest._hosts = list(hosts)  # type: ignore[arg-type]
    return contest


def test_what_a_failed_incumbent_has_trained_is_no_pair() -> None:
    """Candidates that begin again in a new host train other turns."""
    contest = contest_of(ReadyHost())
    assert contest._seat_all()
    assert contest._incumbent is None


def test_the_host_of_a_failed_incumbent_ends() -> None:
    """No candidate plays in it, and the runner would not find it."""
    host: Any = ReadyHost()
    host.discard = Mock()
    assert contest_of(host)._settled() == []
    host.discard.assert_called_once()
