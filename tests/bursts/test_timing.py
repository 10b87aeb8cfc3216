"""A burst's figures are those of a long training run: warm-up, epoch boundaries, and what counts.

Time is spent asleep, so that a busy machine disturbs little.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.jobs.host_job import HostPlayer, stepper_of
from autotune.bursts.jobs.trainer import Learner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Measurement, Outcome, Point
from autotune.timing.clock import Clock
from autotune.timing.player import WAITED_SHARE
from autotune.timing.protocol import FIRST
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload
from tests.bursts import solo
from tests.plain_training import agreeing, loader_of, rate_over_epochs, rate_within_an_epoch, train_on, waiting_fraction
from tests.workloads import mistakes, sleepy

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
PLAN = BurstPlan(measure_seconds=1.0, turn_seconds=0.1)
SHORT = BurstPlan(measure_seconds=0.2)


def agree(workload: Workload, expected: Callable[[], float], plan: BurstPlan = PLAN, *, within: float) -> Measurement:
    """A burst whose rate is the expected one."""
    return agreeing(lambda: solo.measured(workload, plan), expected, within=within)


# The steady state


@pytest.mark.slow
def test_a_full_queue_does_not_flatter_a_slow_loader() -> None:
    """With 4 workers × prefetch 4 the rate is that of the long run; the first batches come several times as fast."""
    knobs = {"batch_size": 4, "num_workers": 4, "prefetch_factor": 4}
    workload = sleepy.build(read_seconds=0.03, step_seconds=0.002, **knobs)
    # A worker that sleeps as it is stopped between blocks sleeps on, which makes up to 4 % here.
    measured = agree(workload, partial(rate_within_an_epoch, workload, skip=40, batches=60), within=0.1)
    loader, optimizer = iter(loader_of(workload)), workload.make_optimizer()
    train_on(workload, optimizer, next(loader))
    time.sleep(0.8)  # as long as compiling may take: the queue fills
    began = time.perf_counter()
    samples = sum(train_on(workload, optimizer, next(loader)) for _ in range(14))
    assert samples / (time.perf_counter() - began) > 2 * measured.samples_per_second


@pytest.mark.slow
def test_a_loader_that_is_a_little_too_slow_is_seen() -> None:
    """A queue that drains slowly would outlast any warm-up: the burst begins with an empty one."""
    knobs = {"batch_size": 4, "num_workers": 4, "prefetch_factor": 8}
    workload = sleepy.build(read_seconds=0.02, step_seconds=0.014, **knobs)
    plain = workload.loss

    def compiles_first(model: nn.Module, batch: Any) -> torch.Tensor:
        if not hasattr(model, "compiled"):
            time.sleep(0.8)
            model.compiled = True
        return plain(model, batch)

    def expected() -> float:
        del workload.model.compiled  # the next burst, if there is one, is to compile again
        return rate_within_an_epoch(workload, skip=20, batches=100)

    slow = Workload(workload.model, workload.dataset, compiles_first, baseline=workload.baseline)
    agree(slow, expected, within=0.05)


@pytest.mark.slow
def test_batches_that_come_in_bunches_are_timed_by_the_round() -> None:
    """Four workers that need 0.4 s a batch deliver four at once: most steps find a batch waiting, and say nothing."""
    workload = sleepy.build(read_seconds=0.1, step_seconds=0.03, batch_size=4, num_workers=4)
    measured = agree(workload, partial(rate_within_an_epoch, workload, skip=8, batches=24), within=0.12)
    assert measured.data_wait_fraction == pytest.approx(waiting_fraction(workload, 8, 24), rel=0.1)


@pytest.fixture
def opened() -> Iterator[Callable[[Workload], solo.Alone]]:
    """Opens players whose first steps are taken. They are closed, or a later test would wait for their workers."""
    gates = []

    def open_one(workload: Workload) -> solo.Alone:
        tuned = Tuned(workload.baseline_config)
        gates.append(solo.Alone(workload, stepper_of(workload, tuned, "all", Learner(workload, tuned), seed=0)))
        return gates[-1]

    yield open_one
    for gate in gates:
        gate.playing.close()


@pytest.mark.parametrize(("read_seconds", "step_seconds", "emptied"), [(0.05, 0.001, True), (0.001, 0.2, False)])
def test_a_wait_for_a_batch_shows_an_empty_queue(
    opened: Callable[[Workload], solo.Alone], read_seconds: float, step_seconds: float, emptied: bool
) -> None:
    """However much it may hold: drawing all of that would take five seconds here."""
    knobs = {"batch_size": 1, "num_workers": 2, "prefetch_factor": 100}
    gate = opened(sleepy.build(read_seconds=read_seconds, step_seconds=step_seconds, **knobs))
    gate.playing.queue_filled()
    gate.lap_until(gate.playing.place + 10)
    assert gate.playing.drained is emptied


def test_handing_over_batches_that_are_ready_empties_no_queue(opened: Callable[[Workload], solo.Alone]) -> None:
    """It may take more of a short step than `WAITED_SHARE`."""
    knobs = {"batch_size": 1, "num_workers": 2, "prefetch_factor": 100}
    gate = opened(sleepy.build(read_seconds=0.0, step_seconds=0.0, **knobs))
    while gate.playing.stream.running._data_queue.qsize() < 50:
        time.sleep(0.01)
    gate.playing.queue_filled()
    lap = gate.lap_until(gate.playing.place + 10)
    assert lap.wait_seconds > WAITED_SHARE * lap.seconds
    assert not gate.playing.drained


def test_blocks_of_fast_steps_hold_many() -> None:
    """Steps far shorter than a block are timed together."""
    measured = solo.measured(mistakes.workload(dataset=mistakes.dataset(40_000)), PLAN)
    assert max(block.samples for block in measured.blocks) > 4 * 8


def test_slow_steps_do_not_run_over_the_plan_for_long() -> None:
    """Steps longer than all that is planned: two to begin with, two to size blocks by, and a few blocks of one each."""
    steps = []
    workload = sleepy.build(batch_size=8)

    def slow(model: nn.Module, batch: Any) -> torch.Tensor:
        steps.append(len(batch))
        time.sleep(0.3)
        return model(batch).mean()

    solo.measured(Workload(workload.model, workload.dataset, slow, baseline=workload.baseline), SHORT)
    assert len(steps) <= 10


def test_compiling_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first steps take longer than later ones is compiling: in no block, and not held against the cap."""

    def fake_compile(function: Any, *, mode: str) -> Any:
        pauses = iter([1.0])
        return lambda *args: (time.sleep(next(pauses, 0.0)), function(*args))[1]

    monkeypatch.setattr(torch, "compile", fake_compile)
    workload = sleepy.build(step_seconds=0.002, batch_size=8, compile_mode="default")
    measured = solo.measured(workload, SHORT)
    assert measured.compile_seconds == pytest.approx(1.0, rel=0.2)
    assert measured.warmup_seconds > 1.0
    assert max(block.seconds for block in measured.blocks) < 0.25
    assert solo.measured(sleepy.build(step_seconds=0.002, batch_size=8), SHORT).compile_seconds is None


# Epoch boundaries


@pytest.mark.slow
def test_starting_workers_is_charged_to_each_epoch() -> None:
    """20 batches an epoch: workers that start again at each cost a third; both rates are those of the long run."""
    rates = {}
    for persistent in (False, True):
        workload = sleepy.build(
            samples=80, read_seconds=0.002, step_seconds=0.015, start_seconds=0.15,
            batch_size=4, num_workers=2, persistent_workers=persistent,
        )  # fmt: skip
        plan = PLAN.model_copy(update={"measure_seconds": 2.0})
        measured = agree(workload, partial(rate_over_epochs, workload, 4), plan, within=0.08)
        assert measured.epoch_samples == 80
        rates[persistent] = measured.samples_per_second
    assert rates[False] < 0.75 * rates[True]


@pytest.mark.slow
def test_an_epoch_longer_than_the_burst_is_charged_for_its_start() -> None:
    """No boundary falls into the blocks: what the burst's own start of the workers cost stands in for it."""
    workload = sleepy.build(
        samples=80, read_seconds=0.01, step_seconds=0.1, start_seconds=0.5, batch_size=4, num_workers=2
    )
    plan = PLAN.model_copy(update={"measure_seconds": 0.5})
    agree(workload, lambda: rate_over_epochs(workload, 1), plan, within=0.05)


@pytest.mark.slow
def test_reading_in_the_process_costs_nothing_extra_at_a_boundary() -> None:
    """Without workers the first batch of an epoch is read like any other."""
    workload = sleepy.build(samples=20, read_seconds=0.02, step_seconds=0.02, batch_size=4)
    measured = agree(workload, partial(rate_over_epochs, workload, 4), within=0.05)
    assert measured.data_wait_fraction == pytest.approx(waiting_fraction(workload, 5, 20), rel=0.05)


@pytest.mark.slow
def test_an_epoch_of_one_batch_is_whole() -> None:
    """Every batch is at a boundary: reading it is charged all the same."""
    workload = sleepy.build(samples=3, read_seconds=0.02, step_seconds=0.03, batch_size=8)
    agree(workload, partial(rate_over_epochs, workload, 15), within=0.05)


@pytest.mark.slow
def test_accumulation_goes_on_over_the_end_of_an_epoch() -> None:
    """Groups of three in epochs of four batches: all samples count, and the rate is that of the micro-steps."""
    workload = sleepy.build(samples=40, step_seconds=0.03, batch_size=10, accumulation_steps=3)
    measured = agree(workload, partial(rate_over_epochs, workload, 9), within=0.08)
    assert {block.samples for block in measured.blocks} == {40}  # whole epochs, though no step ends with one


# What counts


def test_the_start_of_a_loader_that_is_made_anew_is_reported() -> None:
    """A player continues with a new loader where another player's worker has died: its start counts too."""
    workload = sleepy.build(samples=64, batch_size=4, num_workers=1, persistent_workers=True)
    tuned = Tuned(workload.baseline_config)
    request = Request(job="host", point=Point(config=tuned.config))
    make = partial(stepper_of, workload, tuned, "all", Learner(workload, tuned))
    player = HostPlayer(FIRST, make, request, solo.ready(workload, tuned), shared=False)
    starts = []
    for _ in range(2):
        player.trainer.micro_step()
        starts.append(len(player.new_starts))
        player.begin_anew()
    player.close()
    assert starts == [1, 1]


def test_incomplete_batches_count_for_what_they_hold() -> None:
    """10 samples in batches of 4: an epoch of three steps yields 10, not 12."""
    workload = sleepy.build(samples=10, step_seconds=0.03, batch_size=4)
    assert agree(workload, partial(rate_over_epochs, workload, 12), within=0.08).epoch_samples == 10


def test_an_endless_dataset_has_no_epoch() -> None:
    """Where no epoch ends and no length is told, nothing is charged by the epoch."""

    class Endless(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            while True:
                yield torch.ones(4)

    workload = sleepy.build(step_seconds=0.002, batch_size=4)
    assert solo.measured(Workload(workload.model, Endless(), workload.loss, batch_size=4), SHORT).epoch_samples is None


def test_an_epoch_is_what_the_sampler_draws() -> None:
    """Of an epoch that does not end in the burst the length is known, the sampler's and not the dataset's."""
    workload = sleepy.build(samples=100_000, step_seconds=0.002)
    drawn = Workload(workload.model, workload.dataset, workload.loss, sampler=range(70_001))  # type: ignore[arg-type]
    assert solo.measured(drawn, SHORT).epoch_samples == 70_001


def overflowing(every: int) -> Workload:
    """A workload, in fp16, whose gradients are infinite at every so-many-th step."""
    workload = sleepy.build(step_seconds=0.02, batch_size=8, precision="fp16")
    steps = iter(range(10**9))

    def overflow(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf if next(steps) % every == 0 else gradient

    workload.model.bias.register_hook(overflow)  # type: ignore[union-attr,operator]
    return workload


@pytest.mark.slow
def test_steps_that_the_scaler_skipped_do_not_count() -> None:
    """Every second step overflows: half of the samples taught the model something."""

    def expected() -> float:
        return solo.measured(overflowing(every=10**9), PLAN).samples_per_second / 2

    half = agree(overflowing(every=2), expected, within=0.2)
    assert half.skipped_steps > 10


def test_a_step_that_was_skipped_while_leading_in_is_forgotten(
    opened: Callable[[Workload], solo.Alone], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first overflows. A block times one micro-batch of two, and all later steps end in what leads to it.

    What leads in counts with the block.
    """
    workload = sleepy.build(step_seconds=0.001, batch_size=8, precision="fp16", accumulation_steps=2)
    gradients = iter([math.inf])
    workload.model.bias.register_hook(lambda gradient: gradient * next(gradients, 1.0))  # type: ignore[union-attr,operator]
    monkeypatch.setattr(Clock, "lead", 1)
    gate = opened(workload)
    laps = [gate.lap_until(gate.playing.place + 2 * 8) for _ in range(6)]
    assert [lap.samples for lap in laps[-3:]] == [16, 16, 16]


def test_a_scale_that_collapses_is_no_figure() -> None:
    """When every step overflows nothing is learned: that is told as invalid numerics, not as a rate of 0."""
    ends_as(overflowing(every=1), Outcome.INVALID, "skipped every timed step")


def test_a_loss_that_becomes_nan_ends_the_burst() -> None:
    """It is told after how many batches."""
    workload = mistakes.workload()
    steps = iter(range(10**9))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return mistakes.loss(model, batch) * (math.nan if next(steps) > 3 else 1)

    faulty = Workload(workload.model, workload.dataset, loss, batch_size=8)
    ends_as(faulty, Outcome.INVALID, r"the loss became nan after \d+ batches")


# What goes wrong


def ends_as(workload: Workload, outcome: Outcome, words: str) -> None:
    """A burst of it ends so, for a reason that says so."""
    burst = solo.burst_of(workload, SHORT)
    assert burst.outcome is outcome
    assert re.search(words, burst.reason or "")


def test_an_empty_loader_is_told() -> None:
    """Rather than as a StopIteration without a word."""
    ends_as(mistakes.workload(dataset=mistakes.Stream(0)), Outcome.CRASHED, r"the loader yields no batch$")


def test_a_dataset_that_can_be_read_once_is_told() -> None:
    """The second epoch of an exhausted iterator is empty: the remedy is in the sentence."""

    class Once(IterableDataset[Any]):
        def __init__(self) -> None:
            self.samples = iter([(torch.ones(4), 0)] * 20)

        def __iter__(self) -> Iterator[Any]:
            return self.samples

    words = "after its first epoch; an iterable dataset must begin again"
    ends_as(mistakes.workload(dataset=Once()), Outcome.CRASHED, words)


def test_a_worker_that_dies_during_a_step_is_told() -> None:
    """Torch raises that from a signal handler, wherever training happens to be: by the exit status it is recognised."""
    workload = sleepy.build(batch_size=4, num_workers=1)
    steps = iter(range(10**9))

    def kills(model: nn.Module, batch: Any) -> torch.Tensor:
        if next(steps) == 5:
            os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
            time.sleep(1)
        return model(batch).mean()

    faulty = Workload(workload.model, workload.dataset, kills, baseline=workload.baseline)
    ends_as(faulty, Outcome.CRASHED, "killed by SIGKILL")


def test_an_error_of_the_user_is_left_as_it_is() -> None:
    """A RuntimeError of theirs is not taken for a dead worker."""

    def fails(model: nn.Module, batch: Any) -> torch.Tensor:
        raise RuntimeError("the loss went wrong")

    faulty = mistakes.workload(loss=fails, baseline=TrainConfig(batch_size=8, num_workers=1))
    ends_as(faulty, Outcome.CRASHED, "^RuntimeError: the loss went wrong")
