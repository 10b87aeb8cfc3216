"""Time on a device that works through a queue: laps beside the truth of a simulated one, whose clock only work moves.

The trainer, its feed and the loop are the real ones; the workload launches work on the simulated device, and its data
set takes the host's time. What a training realises is then known: the host or the device, whichever is slower.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

from autotune.bursts.jobs.feed import Feed
from autotune.bursts.jobs.trainer import Trainer
from autotune.knobs.config import TrainConfig
from autotune.timing.clock import Clock, EventClock, clock_of
from autotune.timing.protocol import Lap
from autotune.training.tuned import Tuned
from autotune.workload.workload import Workload
from tests.bursts import solo
from tests.simulated_device import Device, Samples

BATCH = 4


class Launching(nn.Module):
    """Its forward launches work, which takes the host a little, too."""

    def __init__(self, device: Device, seconds: float, launch_seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self._work = device, seconds, launch_seconds

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The batch, weighted."""
        device, seconds, launch_seconds = self._work
        device.host(launch_seconds)
        device.launch(seconds)
        return batch * self.weight


class Updating(torch.optim.SGD):
    """Its step launches work; the first one more."""

    def __init__(self, parameters: Any, device: Device, seconds: float, first_seconds: float) -> None:
        super().__init__(parameters, lr=0.01)
        self._device, self._seconds, self._first_seconds = device, seconds, first_seconds

    def step(self, closure: Any = None) -> Any:
        """Launches it."""
        self._device.launch(self._seconds + self._first_seconds)
        self._first_seconds = 0.0
        return super().step(closure)


def timing_of(
    step: float,
    fetch: float = 0.0,
    launch: float = 0.0,
    update: float = 0.0,
    accumulation: int = 1,
    first_update: float = 0.0,
) -> solo.Alone:
    """The loop on a simulated device, its first steps taken."""
    device = Device()
    config = TrainConfig(batch_size=BATCH, accumulation_steps=accumulation)
    workload = Workload(
        Launching(device, step, launch), Samples(device, fetch), lambda model, batch: model(batch).mean(),
        optimizer=lambda parameters: Updating(parameters, device, update, first_update), baseline=config,
    )  # fmt: skip
    tuned = Tuned(config)
    feed = Feed(workload, tuned, clock=EventClock(lambda _: device.event(), lambda _: device.synchronize()))
    return solo.Alone(workload, Trainer(workload, tuned, feed))


def lap_of(timing: solo.Alone, batches: int) -> Lap:
    """A lap of so many micro-batches, as a duet's block; the one that leads in comes on top."""
    return timing.lap_until(timing.playing.place + BATCH * (batches + timing.playing.clock.lead))


@pytest.mark.parametrize("step", [0.005, 0.05, 0.15])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.5])
@pytest.mark.parametrize("batches", [1, 3, 10])
def test_the_host_works_while_the_device_does(step: float, share: float, batches: int) -> None:
    """40 ms of fetching beside 100 ms of computing take 100 ms, in laps of however few steps."""
    lap = lap_of(timing_of(step, fetch=share * step), batches)
    assert lap.seconds / lap.batches == pytest.approx(max(step, share * step), rel=0.03)


@pytest.mark.parametrize(("share", "waiting"), [(0.4, 0.0), (0.9, 0.0), (1.5, 1 / 3), (4.0, 0.75)])
def test_waiting_is_the_devices_not_the_hosts(share: float, waiting: float) -> None:
    """Only what the device has nothing to do is told as waiting for data."""
    lap = lap_of(timing_of(0.1, fetch=0.1 * share), 10)
    assert lap.wait_seconds / lap.seconds == pytest.approx(waiting, abs=0.03)


def test_launching_may_be_what_takes_longest() -> None:
    """A device that waits for launches does not wait for data."""
    lap = lap_of(timing_of(0.001, launch=0.004), 10)
    assert lap.seconds / lap.batches == pytest.approx(0.004, rel=0.03)
    assert lap.wait_seconds / lap.seconds < 0.03


@pytest.mark.parametrize("batches", [1, 2, 3, 7])
def test_parts_of_a_step_are_charged_their_share_of_the_update(batches: int) -> None:
    """Ten micro-batches a step: wherever a block lies, it takes a tenth of the optimizer's step for each."""
    timing = timing_of(0.01, update=0.05, accumulation=10)
    for _ in range(12):
        lap = lap_of(timing, batches)
        assert lap.seconds / lap.batches == pytest.approx(0.015, rel=0.03)


def test_a_device_without_events_is_waited_for_before_the_time_is_read() -> None:
    """What it still has to do when the last call returns belongs to the lap."""
    clock = Clock(lambda: time.sleep(0.05))
    assert clock.seconds(clock.mark(), clock.finish()) >= 0.05


def test_a_cpu_is_timed_by_the_host() -> None:
    """Its work is done when the call returns: nothing leads in."""
    clock = clock_of(torch.device("cpu"))
    assert type(clock) is Clock
    assert clock.lead == 0


def test_what_leads_in_counts_at_the_pace_of_the_rest() -> None:
    """A partner with other micro-batches then counts the same samples, and energy is that of the samples counted."""
    timing = timing_of(0.01)
    lap = timing.lap_until(timing.playing.place + 10 * BATCH)
    assert (lap.samples, lap.consumed, lap.batches) == (10 * BATCH, 10 * BATCH, 10)
    assert lap.seconds == pytest.approx(10 * 0.01, rel=0.03)


def test_the_first_step_of_an_optimizer_stands_for_no_other() -> None:
    """It makes the optimizer's state, which takes long and comes once."""
    timing = timing_of(0.01, update=0.05, accumulation=10, first_update=2.0)
    for _ in range(12):
        lap = lap_of(timing, 7)
    assert lap.seconds / lap.batches == pytest.approx(0.015, rel=0.03)
