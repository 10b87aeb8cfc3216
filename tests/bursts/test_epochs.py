"""What the end of an epoch costs, from laps whose arithmetic can be done by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autotune.bursts.hosts.block_account import boundary_of
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Block, Measurement
from autotune.timing.protocol import Lap, Start

WORKERS = TrainConfig(num_workers=4)
PERSISTENT = TrainConfig(num_workers=4, persistent_workers=True)
AT_AN_END = Start(0.3, 0.2, after_epoch=True)
AT_THE_BEGINNING = Start(0.3, 0.2, after_epoch=False)


def lap(consumed: int, seconds: float, **changes: Any) -> Lap:
    """A lap of batches of one sample."""
    fields = {"samples": consumed, "consumed": consumed, "batches": consumed, "wait_seconds": 0.0}
    return Lap(**{**fields, "seconds": seconds, "starts": 0, "start_seconds": 0.0, **changes})


def crossing(samples: int, seconds: float, start_seconds: float, **changes: Any) -> Lap:
    """A lap in which the loader starts."""
    return lap(samples, seconds, starts=1, start_seconds=start_seconds, **changes)


def charge(laps: Sequence[Lap], starts: Sequence[Start], config: TrainConfig) -> tuple[list[Block], float]:
    """The laps as blocks, and what an epoch's end costs."""
    boundary = boundary_of(laps, starts, config)
    return [boundary.block(lap) for lap in laps], boundary.seconds


def rate(laps: Sequence[Lap], starts: Sequence[Start], config: TrainConfig, epoch_samples: int) -> float:
    """Samples per second of a measurement of these laps."""
    blocks, cost = charge(laps, starts, config)
    return Measurement(
        blocks=tuple(blocks), start_seconds=0, build_seconds=0, warmup_seconds=0,
        epoch_samples=epoch_samples, epoch_boundary_seconds=cost,
    ).samples_per_second  # fmt: skip


EPOCH = [crossing(10, 1.9, 0.5), lap(10, 1.2), lap(10, 1.0), lap(10, 1.0), lap(10, 0.9)]
"""40 samples usually take 4 s; with a start of the loader, and the workers' refilling of the queue, 50 take 6 s."""


def test_whole_epochs_count_as_they_are() -> None:
    """The rate is that of whole epochs, start, refilled queue and all, though the median lap knows of none of that."""
    laps = [lap(10, 1.0), *EPOCH, *EPOCH, crossing(10, 1.9, 0.5)]
    assert rate(laps, [AT_AN_END], WORKERS, 50) == pytest.approx(50 / 6.0, rel=0.01)


def test_a_queue_that_refills_for_long_is_charged_once() -> None:
    """The lap with the epoch's end is too short to hold what workers cost the next two laps."""
    epoch = [crossing(10, 2.0, 0.2), lap(10, 2.0), lap(10, 2.0), *[lap(10, 0.5)] * 9]  # 120 samples in 10.5 s
    assert rate([*epoch * 3, epoch[0]], [AT_AN_END], PERSISTENT, 120) == pytest.approx(120 / 10.5, rel=0.02)


def test_an_incomplete_last_batch_costs_its_step() -> None:
    """Three steps of 1 s for 4, 4 and 2 samples: 10 samples in 3 s, with or without workers."""
    epoch = [crossing(4, 1.0, 0.0), lap(4, 1.0), lap(2, 1.0)]
    assert rate(epoch * 4, [AT_AN_END], TrainConfig(), 10) == pytest.approx(10 / 3.0)


@pytest.mark.parametrize(
    ("seconds", "batches", "cost"), [(2.2, 50, 0.02), (2.0, 50, 0.0), (2.2, 10, 0.2)],
    ids=["many batches", "a start that the device does not notice", "few batches"],
)  # fmt: skip
def test_without_workers_the_end_of_a_long_epoch_costs_what_the_start_takes(
    seconds: float, batches: int, cost: float
) -> None:
    """Blocks scatter by more than that, and what is above zero by chance would be charged."""
    slow = lap(50, seconds, batches=batches)
    epoch = [crossing(50, 2.0, 0.02, batches=batches), slow, lap(50, 2.0, batches=batches)]
    _, charged = charge([lap(50, 2.0)] * 3 + epoch * 3, [Start(0.02, 0.0, after_epoch=True)], TrainConfig())
    assert charged == pytest.approx(cost, abs=1e-3)


def test_many_batches_of_short_epochs_are_not_those_of_a_long_one() -> None:
    """Five epochs of 20 batches in each lap; an end of theirs costs 0.2 s, a tenth of which is the loader's start."""
    whole = lap(100, 6.0, batches=100, starts=5, start_seconds=0.1)
    laps = [lap(100, 5.0, batches=100)] * 5 + [whole] * 3
    _, charged = charge(laps, [Start(0.02, 0.0, after_epoch=True)], TrainConfig())
    assert charged == pytest.approx(0.2, abs=1e-3)


def test_one_disturbed_epoch_of_three_is_not_charged() -> None:
    """Something that happened once is no part of every epoch: it counts where it was, in its block's seconds."""
    disturbed = [*EPOCH[:2], lap(10, 9.0), *EPOCH[3:]]
    blocks, cost = charge([*EPOCH, *disturbed, *EPOCH, crossing(10, 1.9, 0.5)], [AT_AN_END], WORKERS)
    assert cost <= 1.0
    assert blocks[7].seconds == pytest.approx(9.0)


def test_a_single_start_is_judged_by_the_laps_that_refill_the_queue() -> None:
    """From its start until workers × prefetch batches have come; what is slow later is something else."""
    laps = [lap(4, 1.0)] * 5 + [crossing(4, 2.0, 0.5), lap(4, 1.5), lap(4, 5.0)]
    _, cost = charge(laps, [AT_AN_END], TrainConfig(num_workers=4, prefetch_factor=2))
    assert cost == pytest.approx(1.0 + 0.5)


def test_a_start_that_the_device_did_not_notice_costs_nothing() -> None:
    """A device that had enough to do meanwhile: the host's half second is in no lap, and is not charged."""
    laps = [lap(10, 1.0), lap(10, 1.0), lap(10, 1.0), crossing(10, 1.0, 0.5)]
    assert charge(laps, [AT_AN_END], WORKERS)[1] == pytest.approx(0.0)
    assert rate(laps, [AT_AN_END], WORKERS, 100) == pytest.approx(10 / 1.0)


def test_a_restart_stands_in_for_an_epochs_end() -> None:
    """Where no epoch ended: workers that do not persist start then as they would; those that do would only fetch."""
    usual, restarted = [lap(10, 1.0)] * 4, crossing(10, 2.2, 0.5, restarts=1, restart_seconds=0.5)
    starts = [AT_THE_BEGINNING, AT_THE_BEGINNING]
    assert charge([restarted, *usual], starts, WORKERS)[1] == pytest.approx(1.2)
    assert charge([restarted, *usual], starts, PERSISTENT)[1] == pytest.approx(0.2)
    assert charge([restarted, *usual], starts, TrainConfig())[1] == pytest.approx(0.3)


def test_reading_the_only_batch_is_no_cost_of_a_restart_without_workers() -> None:
    """Each batch takes as long to read: 40 ms of 42 are not taken off, as if training read nothing."""
    only = crossing(1, 0.042, 0.041, restarts=1, restart_seconds=0.041)
    (block,), _ = charge([only], [Start(0.001, 0.04, after_epoch=False)], TrainConfig())
    assert block.seconds == pytest.approx(0.041)


def test_where_every_lap_holds_a_start_nothing_is_lost() -> None:
    """Epochs shorter than a lap: what is taken out of the blocks is charged again; the rate is that of the clock."""
    laps = [crossing(20, 2.0, 0.5, wait_seconds=0.4), crossing(20, 2.0, 0.5, wait_seconds=0.4)]
    assert rate(laps, [AT_AN_END], WORKERS, 20) == pytest.approx(20 / 2.0)


def test_ordinary_waiting_is_no_cost_of_a_start() -> None:
    """While the first batch is awaited each of 4 workers prepares one: 4 batches' usual waiting stays in the block."""
    starts = [Start(0.0, 0.4, after_epoch=True)]
    blocks, cost = charge([lap(10, 2.0, wait_seconds=1.0), crossing(11, 2.0, 0.4, wait_seconds=1.0)], starts, WORKERS)
    assert cost == pytest.approx(0.0)
    assert blocks[1].seconds == pytest.approx(2.0)
    assert blocks[1].data_wait_seconds == pytest.approx(1.4)


def test_waiting_for_another_loader_is_waiting_but_costs_no_start() -> None:
    """Half of two seconds went to the labelled batches, half to the others."""
    laps = [lap(10, 2.0, wait_seconds=1.0, wait_beside_seconds=0.8)] * 3
    blocks, cost = charge([*laps, crossing(10, 2.0, 0.1, wait_seconds=0.9, wait_beside_seconds=0.8)], [], WORKERS)
    assert [block.data_wait_seconds for block in blocks] == pytest.approx([1.8, 1.8, 1.8, 1.8])
    assert cost == 0.0


def test_steps_that_taught_nothing_took_their_time() -> None:
    """Samples of skipped steps count for the seconds, and not for the rate."""
    laps = [lap(10, 1.0, samples=0), lap(10, 1.0), lap(10, 1.0), lap(10, 1.0)]
    blocks, cost = charge(laps, [AT_AN_END], WORKERS)
    assert [block.samples for block in blocks] == [0, 10, 10, 10]
    assert cost == pytest.approx(0.5)


def test_batches_that_stay_on_the_device_know_no_epochs() -> None:
    """Nothing starts, so nothing is charged."""
    assert charge([lap(10, 1.0)] * 4, [], WORKERS)[1] == 0.0


def test_a_restart_is_no_epochs_end_to_workers_that_persist() -> None:
    """Their own start comes once; at an epoch's end they only fetch, which no worker does for longer than all train."""
    restarted = crossing(10, 6.0, 5.5, restarts=1, restart_seconds=5.5)
    blocks, cost = charge([restarted, *[lap(10, 1.0)] * 4], [Start(0.5, 5.0, after_epoch=False)], PERSISTENT)
    assert cost == pytest.approx(0.4)
    assert blocks[0].seconds == pytest.approx(1.0)


def test_what_a_restarts_forks_make_slow_is_no_part_of_training() -> None:
    """After workers that persist have started, each page is copied once: the lap counts as one usually does."""
    restarted = crossing(10, 5.5, 0.5, restarts=1, restart_seconds=0.5)
    laps, starts = [restarted, *[lap(10, 1.0)] * 4], [Start(0.3, 0.2, after_epoch=False)]
    assert [block.seconds for block in charge(laps, starts, PERSISTENT)[0]] == pytest.approx([1.0] * 5)
    assert charge(laps, starts, TrainConfig())[0][0].seconds == pytest.approx(5.0)


@pytest.mark.parametrize("config", [PERSISTENT, TrainConfig()], ids=["persistent", "no workers"])
def test_the_stretch_after_a_restart_is_no_epoch(config: TrainConfig) -> None:
    """Caches are cold after it, and workers start; the one epoch that ended tells what its end costs."""
    restarted = crossing(10, 4.0, 1.0, restarts=1, restart_seconds=1.0)
    laps = [restarted, *[lap(10, 1.0)] * 4, crossing(10, 1.3, 0.3), *[lap(10, 1.0)] * 4]
    starts = [Start(0.5, 0.5, after_epoch=False), Start(0.1, 0.2, after_epoch=True)]
    assert charge(laps, starts, config)[1] == pytest.approx(0.3)


def test_what_is_compiled_late_is_no_cost_of_an_epochs_end() -> None:
    """A last batch that is smaller is compiled for once, in the first epoch."""
    late = crossing(10, 21.0, 0.3, compiled=True)
    laps = [
        lap(10, 1.0),
        late,
        *[lap(10, 1.0)] * 3,
        crossing(10, 1.3, 0.3),
        *[lap(10, 1.0)] * 3,
        crossing(10, 1.3, 0.3),
    ]
    assert charge(laps, [AT_AN_END], TrainConfig())[1] == pytest.approx(0.3)


def test_the_starts_in_a_lap_are_not_charged_to_what_led_in() -> None:
    """Ten samples in two seconds, one of which the loader's start took: two that led in take 0.2 s more."""
    whole = crossing(10, 2.0, 1.0, lead=2, wait_seconds=0.5).with_lead()
    assert (whole.samples, whole.consumed, whole.batches, whole.lead) == (12, 12, 12, 0)
    assert whole.seconds == pytest.approx(2.2)
    assert whole.wait_seconds == pytest.approx(0.6)
    assert (whole.starts, whole.start_seconds) == (1, 1.0)
