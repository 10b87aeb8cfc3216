"""Configs that live side by side train the same samples in turn, and what happens to one is no harm to the other."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.bursts.duet import Played, play_round
from autotune.bursts.isolation import Isolation
from autotune.bursts.protocol import BurstPlan, Request
from autotune.bursts.runner import ProcessRunner
from autotune.errors import Interrupted
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from tests.processes import ROOT

PLAN = BurstPlan(warmup_seconds=0.2, measure_seconds=0.4, block_seconds=0.03)
SECONDS = 60.0
SLOW, FAST = (Point(config=TrainConfig(batch_size=size, accumulation_steps=32 // size)) for size in (4, 32))


@pytest.fixture
def tiny() -> Iterator[Isolation]:
    """Where runners of the tiny workload come from."""
    with Isolation("tests.workloads.tiny:build") as isolation:
        isolation.start(SECONDS)
        yield isolation


def request(target: str, config: TrainConfig | None = None) -> Request:
    """A runner of a target."""
    return Request(
        job="runner", target=target, device="cpu", plan=PLAN, point=Point(config=config or TrainConfig(batch_size=32))
    )


def below() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def test_both_sides_train_equal_blocks_of_the_same_samples(tiny: Isolation) -> None:
    """Blocks have the same samples on both sides, whatever the micro-batch, and as many on each."""
    slow, fast = ProcessRunner(tiny, "cpu").play([SLOW, FAST], PLAN, SECONDS)
    assert slow.measurement is not None
    assert fast.measurement is not None
    samples = [[block.samples for block in side.measurement.blocks] for side in (slow, fast) if side.measurement]
    assert samples[0] == samples[1]
    assert len(samples[0]) >= 3


def test_small_micro_batches_are_slower(tiny: Isolation) -> None:
    """Eight steps of four samples take longer than one of thirty-two: the sides are not mixed up."""
    slow, fast = ProcessRunner(tiny, "cpu").play([SLOW, FAST], PLAN, SECONDS)
    assert (fast.rate or 0.0) > (slow.rate or 0.0)


def test_nothing_of_a_side_runs_while_the_other_trains(tmp_path: Path) -> None:
    """Workers are stopped with their runner: no sample is read in a partner's turn."""
    with Isolation("tests.workloads.reads:build") as isolation:
        isolation.start(SECONDS)
        points = [
            Point(
                config=TrainConfig(batch_size=4, num_workers=1, prefetch_factor=8),
                parameters={"log": str(tmp_path / n)},
            )
            for n in ("first", "second")
        ]
        bursts = ProcessRunner(isolation, "cpu").play(points, PLAN, SECONDS)
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]
    reads = sorted(
        (float(line), side) for side in ("first", "second") for line in (tmp_path / side).read_text().split()
    )
    started = max(next(at for at, side in reads if side == name) for name in ("first", "second"))
    settled = [side for at, side in reads if at > started]
    turns = sum(one != other for one, other in itertools.pairwise(settled))
    # One sample or two may still end in the partner's turn; without stopping, every second one would.
    assert turns < len(settled) / 4


def test_a_side_that_fails_leaves_its_partner_alone() -> None:
    """The fault is the outcome of its side; the other trains to its end."""
    with Isolation("tests.workloads.faults:raises") as isolation:
        isolation.start(SECONDS)
        played = play(isolation, "tests.workloads.faults:raises", "tests.workloads.tiny:build")
    events = [ended.message["event"] for ended in played.ended if ended.message is not None]
    assert events == ["failure", "result"]


def play(isolation: Isolation, *targets: str, seconds: float = SECONDS) -> Played:
    """A duet of targets."""
    return play_round(isolation, [request(target) for target in targets], PLAN, time.monotonic() + seconds, seed=0)


def test_a_side_that_hangs_ends_at_the_deadline_and_nothing_is_left() -> None:
    """The deadline is for the whole duet, and no stopped process survives it."""
    before = below()
    with Isolation("tests.workloads.faults:hang") as isolation:
        isolation.start(SECONDS)
        began = time.monotonic()
        played = play(isolation, "tests.workloads.tiny:build", "tests.workloads.faults:hang", seconds=8.0)
        assert time.monotonic() - began < 8.0 + 20.0
    assert played.ended[1].timed_out
    assert below() - before == set()


def test_an_interruption_leaves_no_stopped_process(tiny: Isolation) -> None:
    """Ctrl-C in the middle of a duet ends all its processes."""
    long = PLAN.model_copy(update={"measure_seconds": 60.0})
    timer = signal.signal(signal.SIGALRM, lambda *_: tiny.interrupt())
    signal.setitimer(signal.ITIMER_REAL, 3.0)
    try:
        with pytest.raises(Interrupted):
            play_round(tiny, [request("tests.workloads.tiny:build")] * 2, long, time.monotonic() + SECONDS, seed=0)
    finally:
        signal.signal(signal.SIGALRM, timer)
    runners = [one for one in below() if one.ppid() != os.getpid()]
    assert runners == []


def test_a_killed_parent_leaves_nothing_behind(tmp_path: Path) -> None:
    """Even stopped runners and their workers end with the command that started them."""
    code = (
        "import time; from tests.bursts.test_duet import *;"
        "iso = Isolation('tests.workloads.tiny:build'); iso.start(60);"
        "plan = PLAN.model_copy(update={'measure_seconds': 60.0});"
        "play_round(iso, [request('tests.workloads.tiny:build', TrainConfig(batch_size=32, num_workers=1))] * 2, "
        "plan, time.monotonic() + 60, 0)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    process = psutil.Process(parent.pid)
    deadline = time.monotonic() + SECONDS
    while len(found := process.children(recursive=True)) < 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(found) >= 5  # the forkserver, two runners, a worker each
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(found, timeout=20)
    assert alive == []


@pytest.mark.parametrize(("cache_bytes", "same"), [(10**12, True), (1000, False)])
def test_data_that_exceed_memory_are_not_read_twice(cache_bytes: int, same: bool, tmp_path: Path) -> None:
    """Whoever read a sample second would read it from memory: then the sides train different ones, which is told."""
    target = "tests.workloads.files:build"
    with Isolation(target) as isolation:
        isolation.start(SECONDS)
        runner = ProcessRunner(isolation, "cpu", cache_bytes=cache_bytes)
        told = any("different samples" in note for note in runner.check(SECONDS).notes)
        config = TrainConfig(batch_size=4)
        names = ("first", "second")
        runner.play([Point(config=config, parameters={"log": str(tmp_path / n)}) for n in names], PLAN, SECONDS)
    first, second = ((tmp_path / name).read_text().split() for name in names)
    assert (first[:200] == second[:200]) is same
    assert told is not same
