"""Configs that live side by side train the same samples in turn, and what happens to one is no harm to the other."""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from autotune.bursts.hosts.block_account import PlayedBlock
from autotune.bursts.hosts.host import Host
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.turns.duet import TURN_SECONDS, Duet, play_round
from autotune.bursts.turns.player import Player
from autotune.errors import Interrupted
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Outcome, Point
from tests.bursts.solo import ReadyHost
from tests.conftest import RunnerOf
from tests.processes import ROOT
from tests.workloads.paced import SAMPLES

PLAN = BurstPlan(measure_seconds=0.4)
SECONDS = 60.0
TINY = "tests.workloads.tiny:build"
SLOW, FAST = (Point(config=TrainConfig(batch_size=size, accumulation_steps=32 // size)) for size in (4, 32))


def request(target: str, config: TrainConfig | None = None) -> Request:
    """A host of a target."""
    return Request(
        job="host", target=target, device="cpu", plan=PLAN, point=Point(config=config or TrainConfig(batch_size=32))
    )


def below() -> set[psutil.Process]:
    """All processes below this one."""
    return set(psutil.Process().children(recursive=True))


def test_micro_batches_that_share_no_block_size_train_the_same_samples_too(runner_of: RunnerOf) -> None:
    """Of 8 and of 12, though a step takes longer than a turn: a block is 24, not 12 on one side and 8 or 16 there."""
    points = [
        Point(config=TrainConfig(batch_size=size, accumulation_steps=48 // size), parameters={"step_seconds": 0.03})
        for size in (8, 12)
    ]
    plan = PLAN.model_copy(update={"turn_seconds": 0.06})
    bursts = runner_of("tests.workloads.sleepy:build").play(points, plan, SECONDS)
    counts = [[block.samples for block in burst.measurement.blocks] for burst in bursts if burst.measurement]
    assert counts[0] == counts[1]
    assert set(counts[0]) == {24}


@pytest.mark.parametrize(
    ("samples", "longer"),
    [pytest.param(10_000, True, id="long epochs"), pytest.param(24, False, id="short epochs", marks=pytest.mark.slow)],
)
def test_rounds_take_longer_turns_but_not_whole_epochs_for_it(samples: int, longer: bool, runner_of: RunnerOf) -> None:
    """A block in the rounds that confirm is longer than in the search, unless an epoch would be one block."""
    points = [
        Point(config=TrainConfig(batch_size=2), parameters={"step_seconds": seconds, "samples": samples})
        for seconds in (0.015, 0.016)
    ]
    sizes = []
    for turn_seconds in (None, TURN_SECONDS):
        plan = PLAN.model_copy(update={"turn_seconds": turn_seconds, "measure_seconds": 1.0})
        bursts = runner_of("tests.workloads.sleepy:build").play(points, plan, SECONDS)
        blocks = [burst.measurement.blocks for burst in bursts if burst.measurement]
        sizes.append(max(block.samples for block in blocks[0]))
    assert (sizes[0] > 1.5 * sizes[1]) is longer


def test_rounds_are_spread_over_an_epoch(runner_of: RunnerOf, tmp_path: Path) -> None:
    """Where the data have an order of their own, rounds train on its beginning, its middle and its end."""
    log = tmp_path / "log"
    points = [
        Point(config=TrainConfig(batch_size=size), parameters={"log": str(log), "ordered": True}) for size in (8, 16)
    ]
    runner, places = runner_of("tests.workloads.paced:build"), []
    for number in range(4):
        bursts = runner.play(points, PLAN.of_round(number), SECONDS)
        assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]
        trained = log.with_suffix(".trained").read_text().splitlines()
        places.append(int(trained[-1].split()[-1]) / SAMPLES)
    gaps = itertools.pairwise([0.0, *sorted(places), 1.0])
    assert max(after - before for before, after in gaps) < 0.45


def test_nothing_of_a_side_runs_while_the_other_trains(runner_of: RunnerOf, tmp_path: Path) -> None:
    """Workers are stopped with their runner: no sample is read in a partner's turn."""
    config = TrainConfig(batch_size=4, num_workers=1, prefetch_factor=8)
    points = [Point(config=config, parameters={"log": str(tmp_path / name)}) for name in ("first", "second")]
    bursts = runner_of("tests.workloads.reads:build").play(points, PLAN, SECONDS)
    assert [burst.outcome for burst in bursts] == [Outcome.OK, Outcome.OK]
    reads = sorted(
        (float(line), side) for side in ("first", "second") for line in (tmp_path / side).read_text().split()
    )
    started = max(next(at for at, side in reads if side == name) for name in ("first", "second"))
    settled = [side for at, side in reads if at > started]
    turns = sum(one != other for one, other in itertools.pairwise(settled))
    # One sample or two may still end in the partner's turn; without stopping, every second one would.
    assert turns < len(settled) / 4


def test_a_side_that_fails_leaves_its_partner_alone(forkserver: Isolation) -> None:
    """The fault is the outcome of its side; the other trains to its end."""
    faulty, partner = play(forkserver, "tests.workloads.faults:raises", TINY)
    assert faulty.outcome is Outcome.CRASHED
    assert partner.ok


def test_an_epochs_end_is_charged_where_its_length_shows_only_then(forkserver: Isolation) -> None:
    """An iterable data set without a length, whose worker is started anew each epoch: no sample comes free of that."""
    asked = request("tests.workloads.lengths:build_iterable", TrainConfig(batch_size=8, num_workers=1))
    deadline = time.monotonic() + SECONDS
    player = Player(Host(forkserver, asked, deadline), asked)
    player.start(deadline)
    player.train(4 * 256, deadline)
    (block,) = player.blocks
    player.host.discard()
    assert player.epoch_samples is None
    assert player.per_sample(block) > block.seconds / block.samples


def test_nothing_else_runs_while_a_process_takes_its_first_steps(forkserver: Isolation) -> None:
    """They compile, and the compiler times its kernels: each other process of the run is stopped meanwhile."""
    deadline = time.monotonic() + SECONDS
    asked = request(TINY, TrainConfig(batch_size=8, num_workers=1))
    first = Player(Host(forkserver, asked, deadline), asked)
    first.start(deadline)
    family = [psutil.Process(first.host._live.pid), *psutil.Process(first.host._live.pid).children(recursive=True)]
    assert len(family) > 1
    second = Player(Host(forkserver, asked, deadline), asked)
    seen: list[set[str]] = []

    def look() -> None:
        while not second._pace and time.monotonic() < deadline:
            seen.append({process.status() for process in family})
            time.sleep(0.01)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        second.start(deadline)
        looking.join()
    finally:
        for player in (first, second):
            player.host.discard()
    stopped = {psutil.STATUS_STOPPED}
    since = list(itertools.dropwhile(lambda statuses: statuses != stopped, seen))  # a signal takes a moment
    assert since
    assert set.union(*since) == stopped


def duet_of(*counts: list[int], compiled: int | None = None) -> Duet:
    """A duet of players that have trained blocks of so many samples; the first compiled something in one of them."""
    duet = Duet(PLAN, math.inf, seed=0, ends=1)
    for number, samples in enumerate(counts):
        player = Player(ReadyHost(), request(TINY))  # type: ignore[arg-type]
        player.blocks = [
            PlayedBlock(count, 0.1, compiled=number == 0 and turn == compiled) for turn, count in enumerate(samples)
        ]
        duet.players.append(player)
    return duet


def test_turns_in_which_every_step_was_skipped_do_not_count() -> None:
    """A GradScaler learns its scale by skipping steps: no sample of theirs counts, and no ratio is made of them."""
    assert duet_of([64, 64, 64, 64], [0, 32, 64, 0]).counted() == [1, 2]


def test_turns_in_which_a_side_compiles_do_not_count() -> None:
    """For a last batch that is smaller, say: that is done once, not in each epoch."""
    assert duet_of([64] * 4, [64] * 4, compiled=2).counted() == [0, 1, 3]


@pytest.mark.parametrize(("device", "batches"), [("cpu", 1), ("cuda", 2), ("rocm", 2)])
def test_a_block_on_a_gpu_holds_more_than_its_lead(device: str, batches: int) -> None:
    """Where a micro-batch takes longer than a turn: the gate trains the lead and one more, which must not overshoot."""
    duet = Duet(PLAN, math.inf, seed=0, ends=1)
    for _ in range(2):
        asked = request(TINY).model_copy(update={"device": device})
        player = Player(ReadyHost(pace=1.0), asked)  # type: ignore[arg-type]
        player.trained_seconds = player._pace = 1.0
        duet.players.append(player)
    assert duet._block_samples() == batches * duet.players[0].config.batch_size


@pytest.mark.parametrize(
    ("seconds", "samples"), [(0.001, 240), (0.05, 120)], ids=["a step of 0.1 s leads in", "a step of 6 s does not"]
)
def test_freed_memory_costs_a_long_step_no_second_one(seconds: float, samples: int) -> None:
    """A language model on a full card: 12 × 10 beside 30 × 4. Whole steps led in, and blocks held three more."""
    duet = Duet(PLAN.model_copy(update={"frees": True, "turn_seconds": 2.0}), math.inf, seed=0, ends=1)
    for batch_size, accumulation, gain in ((12, 10, 1), (30, 4, 6)):
        config = TrainConfig(batch_size=batch_size, accumulation_steps=accumulation)
        asked = request(TINY, config).model_copy(update={"device": "cuda"})
        player = Player(ReadyHost(pace=seconds / gain), asked)  # type: ignore[arg-type]
        player.trained_seconds, player._pace = 1.0, seconds / gain
        duet.players.append(player)
    assert duet._block_samples() == samples


@pytest.mark.parametrize(("dropped", "is_whole"), [(0, True), (7, True), (40, False)])
def test_blocks_are_whole_epochs_though_one_drops_the_last_batch(dropped: int, is_whole: bool) -> None:
    """Batches hold 32 samples; an epoch that is shorter by more is another epoch."""
    duet = Duet(PLAN, math.inf, seed=0, ends=1)
    for samples in (60, 60 - dropped):
        player = Player(ReadyHost(), request(TINY))  # type: ignore[arg-type]
        player.trained_seconds, player._pace, player.epoch_samples = 1.0, 1e-3, samples
        duet.players.append(player)
    assert (duet._block_samples() % 60 == 0) == is_whole


@pytest.mark.parametrize(("epoch", "samples"), [(30, 210), (90, 180), (150, 60), (900, 200)])
def test_blocks_of_a_round_are_long_also_where_epochs_are_short(epoch: int, samples: int) -> None:
    """Whole epochs of a turn's 200 samples; shorter blocks only where they lie within an epoch of 120 to 400."""
    duet = Duet(PLAN.model_copy(update={"measure_seconds": 5.0}), math.inf, seed=0, ends=1, turn_seconds=0.2)
    for _ in range(2):
        player = Player(ReadyHost(), request(TINY, TrainConfig(batch_size=10)))  # type: ignore[arg-type]
        player.trained_seconds, player._pace, player.epoch_samples = 1.0, 1e-3, epoch
        duet.players.append(player)
    assert duet._block_samples() == samples


@pytest.mark.parametrize(("workers", "batches"), [((0, 0), 10), ((0, 4), 8), ((3, 2), 12), ((5, 7), 10)])
def test_blocks_hold_whole_rounds_of_workers(workers: tuple[int, ...], batches: int) -> None:
    """Four workers deliver four batches at once; rounds in common that are longer than a turn do not count."""
    duet = Duet(BurstPlan(measure_seconds=1.0, turn_seconds=0.1), math.inf, seed=0, ends=1)
    for count in workers:
        player = Player(ReadyHost(), request(TINY, TrainConfig(batch_size=32, num_workers=count)))  # type: ignore[arg-type]
        player.trained_seconds, player._pace = 1.0, 0.0101 / 32
        duet.players.append(player)
    assert duet._block_samples() == batches * 32


@pytest.mark.parametrize(("largest", "goes_on"), [((), True), ((0, 1), False)])
def test_time_is_kept_for_steps_on_the_largest_samples(largest: tuple[int, ...], goes_on: bool) -> None:
    """A micro-batch takes 32 s here: two steps on the largest samples would pass the deadline."""
    duet = Duet(PLAN, time.monotonic() + 60, seed=0, ends=1)
    player = Player(ReadyHost(), request(TINY).model_copy(update={"largest_samples": largest}))  # type: ignore[arg-type]
    player._pace = 1.0
    duet.players.append(player)
    assert duet._goes_on(1) is goes_on


def test_a_side_that_has_failed_takes_no_blocks_of_the_others_along() -> None:
    """Two that go on are compared by all that they train; the third ended in its third block."""
    assert duet_of([64] * 6, [64] * 6, [64] * 2).counted() == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_loader_that_starts_slowly_is_no_hang(runner_of: RunnerOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 0.06 s, in which workers start who take 0.7 s for it: at a restart, and at each epoch's end."""
    monkeypatch.setattr("autotune.bursts.turns.player.HANG_SECONDS", 0.3)
    monkeypatch.setattr("autotune.bursts.turns.player.HANG_BLOCKS", 2)
    # A busy machine's workers were seen to take the 5 s until their loader kills them, as they end before a restart.
    monkeypatch.setattr("autotune.bursts.turns.player.LOADER_STARTS", 15)
    config = TrainConfig(batch_size=4, num_workers=1)
    point = Point(config=config, parameters={"start_seconds": 0.7, "samples": 64})
    plan = BurstPlan(measure_seconds=0.1)
    (burst, _) = runner_of("tests.workloads.sleepy:build").play([point, point], plan, SECONDS)
    assert burst.outcome is Outcome.OK, burst.reason


def test_steps_of_seconds_take_fewer_turns(runner_of: RunnerOf) -> None:
    """Five of the planned rounds are in three turns; five turns would let two rounds take the time of three."""
    config = TrainConfig(batch_size=4)
    slow = [Point(config=config, parameters={"step_seconds": 0.35, "batch_size": 4}) for _ in range(2)]
    plan = PLAN.model_copy(update={"measure_seconds": 0.1})
    bursts = runner_of("tests.workloads.sleepy:build").play(slow, plan, SECONDS)
    # One that a neighbour took notably much from does not count.
    assert {len(burst.measurement.blocks) for burst in bursts if burst.measurement is not None} <= {2, 3}


def play(isolation: Isolation, *targets: str, seconds: float = SECONDS) -> list[Burst]:
    """A duet of targets."""
    return play_round(isolation, [request(target) for target in targets], PLAN, time.monotonic() + seconds, seed=0)


def test_a_side_that_hangs_ends_at_the_deadline_and_nothing_is_left(forkserver: Isolation) -> None:
    """The deadline is for the whole duet, and no stopped process survives it."""
    before = below()
    began = time.monotonic()
    played = play(forkserver, TINY, "tests.workloads.faults:hang", seconds=4.0)
    assert time.monotonic() - began < 4.0 + 20.0
    assert played[1].outcome is Outcome.TIMEOUT
    assert below() - before == set()


def test_an_interruption_leaves_no_stopped_process(forkserver: Isolation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a duet ends all its processes."""
    monkeypatch.setattr(forkserver, "_interrupted", False)  # as it is again for later tests
    long = PLAN.model_copy(update={"measure_seconds": 60.0})
    before = below()
    timer = signal.signal(signal.SIGALRM, lambda *_: forkserver.interrupt())
    signal.setitimer(signal.ITIMER_REAL, 3.0)
    try:
        with pytest.raises(Interrupted):
            play_round(forkserver, [request(TINY)] * 2, long, time.monotonic() + SECONDS, seed=0)
    finally:
        signal.signal(signal.SIGALRM, timer)
    assert below() <= before


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_a_killed_parent_leaves_nothing_behind(together: bool) -> None:
    """Even stopped runners and their workers end with the command, also where the forkserver is killed with it."""
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
    (server,) = process.children()
    if together:
        server.suspend()  # it must not see that it is alone before it is killed itself
    parent.kill()
    if together:
        server.kill()
    parent.wait()
    _, alive = psutil.wait_procs(found, timeout=20)
    assert alive == []


@pytest.mark.parametrize(("cache_bytes", "same"), [(10**12, True), (1000, False)])
def test_data_that_exceed_memory_are_not_read_twice(
    runner_of: RunnerOf, cache_bytes: int, same: bool, tmp_path: Path
) -> None:
    """Whoever read a sample second would read it from memory: then the sides train different ones, which is told."""
    runner = runner_of("tests.workloads.files:build", cache_bytes=cache_bytes)
    told = any("different samples" in note for note in runner.check(SECONDS).notes)
    config = TrainConfig(batch_size=4)
    names = ("first", "second")
    runner.play([Point(config=config, parameters={"log": str(tmp_path / n)}) for n in names], PLAN, SECONDS)
    first, second = ((tmp_path / name).read_text().split() for name in names)
    # Each begins where it needs to in the stream, to be warm when it comes to the other.
    series = [{tuple(reads[at : at + 50]) for at in range(len(reads) - 49)} for reads in (first, second)]
    assert bool(series[0] & series[1]) is same
    assert told is not same
