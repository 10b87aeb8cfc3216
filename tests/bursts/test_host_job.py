"""What the players of a host share."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import pytest
import torch

from autotune.bursts.hosts.protocol import Request
from autotune.bursts.jobs.host_job import HostPlayer, stepper_of
from autotune.bursts.jobs.trainer import Learner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Point
from autotune.timing.player import NonFiniteLossError
from autotune.timing.protocol import FIRST, Command
from autotune.training.tuned import Tuned
from tests.bursts import solo
from tests.workloads import mistakes


def test_a_data_set_that_is_collated_once_is_read_once_in_a_host() -> None:
    """Players that join train on the same copy, which goes with the last of them: its memory is charged to others."""
    reads: list[int] = []

    def read(index: int) -> tuple[torch.Tensor, int]:
        reads.append(index)
        return torch.full((4,), float(index)), index % 2

    workload = mistakes.workload(dataset=mistakes.Mapped(read))
    requests = [
        Request(job="host", point=Point(config=TrainConfig(batch_size=batch_size, data_placement=placement)))
        for batch_size, placement in ((8, "loader"), (8, "collated"), (16, "collated"), (4, "collated"))
    ]
    first, *others = requests
    isolation = solo.SoloIsolation(workload)
    live = isolation.open(first, 0.0)

    def said() -> list[Any]:
        events = [isolation.wait(live) for _ in range(len(live.inbox))]
        return [event and event["event"] for event in events]

    assert said() == ["ready"]
    counts = []
    for number, request in enumerate(others, FIRST + 1):
        isolation.command(live, Command("join", number, request))
        assert said() == ["ready"]
        counts.append(len(reads))
        if number < FIRST + 3:
            isolation.command(live, Command("leave", number if number == FIRST + 2 else FIRST))
            assert said() == ["report"]
    assert len(reads) > 64
    assert counts == counts[:1] * 3
    host, _ = isolation._jobs[live.number]
    (placed,) = [weakref.ref(entry[-1]) for entry in host._setup.tuned._placed]
    for number in (FIRST + 1, FIRST + 3):
        isolation.command(live, Command("leave", number))
    gc.collect()
    assert placed() is None
    isolation.discard(live)


def test_a_loss_that_the_largest_samples_spoil_is_noticed() -> None:
    """Else weights that are not finite would be charged to the player that comes next."""
    workload = mistakes.workload(loss=lambda model, batch: model(batch[0]).sum() * float("nan"))
    tuned = Tuned(workload.baseline_config)
    request = Request(job="host", point=Point(config=tuned.config), largest_samples=(0, 1))
    make = functools.partial(stepper_of, workload, tuned, "all", Learner(workload, tuned))
    player = HostPlayer(FIRST, make, request, solo.ready(workload, tuned), shared=False)
    with pytest.raises(NonFiniteLossError):
        player.train_on_worst()


def test_each_player_decides_when_gradients_are_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose config is in force already, since another player had it."""
    seated: list[Tuned] = []
    monkeypatch.setattr(Tuned, "exchanges", lambda tuned, _: seated.append(tuned))
    request = Request(job="host", point=Point(config=TrainConfig(batch_size=8)))
    isolation = solo.SoloIsolation(mistakes.workload())
    live = isolation.open(request, 0.0)
    isolation.command(live, Command("join", 1, request))
    isolation.command(live, Command("train", FIRST, until=64))
    isolation.discard(live)
    assert len(seated) == len(set(seated)) == 2
