"""What a player says of itself before its first block, from what its host has said; the host is made up."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autotune.bursts.hosts.block_account import PlayedBlock
from autotune.bursts.hosts.protocol import Request
from autotune.bursts.turns.player import Player
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point
from tests.bursts.solo import ReadyHost

LATEST = math.inf


def started(workers: int, **event: Any) -> Player:
    """A player with batches of eight that has taken its first steps."""
    config = TrainConfig(batch_size=8, num_workers=workers, prefetch_factor=2 if workers else None)
    request = Request(job="host", point=Point(config=config), sample_wait_fraction=0.0, device="cpu")
    player = Player(ReadyHost(**event), request)  # type: ignore[arg-type]
    player.start(LATEST)
    return player


def test_a_batch_that_was_there_already_tells_no_pace() -> None:
    """Two workers took 80 ms for a batch each; training on what they had read before took 0.4 ms of a batch."""
    player = started(2, pace=0.00005, loader_seconds=0.08)
    assert player.pace == pytest.approx(0.08 / 16)
    assert player.lead_samples(0.25) == 56  # 0.25 s of it, less a step, in batches; 5,000 samples by the first pace


@pytest.mark.parametrize(("workers", "loader_seconds"), [(0, 0.08), (2, 0.002)])
def test_where_nothing_is_waited_for_steps_tell_the_pace(workers: int, loader_seconds: float) -> None:
    """Whoever reads by itself has waited in each step, and a loader that is faster is never waited for."""
    assert started(workers, pace=0.001, loader_seconds=loader_seconds).pace == 0.001


@pytest.mark.parametrize(("loader_seconds", "samples"), [(0.002, 8), (10.0, 32)])
def test_a_queue_that_fills_fast_need_not_be_emptied(loader_seconds: float, samples: int) -> None:
    """Two workers prepare two batches of eight each, in 4 ms or not within the time that these are trained in."""
    assert started(2, pace=1.0, loader_seconds=loader_seconds).lead_samples(0.0) == samples


def test_a_block_in_which_every_step_was_skipped_tells_no_pace() -> None:
    """The block before it does."""
    player = started(0, pace=1.0, loader_seconds=0.0)
    player.blocks = [PlayedBlock(8, 0.4), PlayedBlock(0, 0.4)]
    assert player.pace == pytest.approx(0.05)
