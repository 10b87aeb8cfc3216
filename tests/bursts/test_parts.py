"""Ceilings: what one part of training does alone, held against plain PyTorch that does the same."""

from __future__ import annotations

import pytest

from autotune.bursts.hosts.protocol import BurstPlan, Part
from autotune.measuring.records import Measurement, Outcome
from autotune.workload.workload import Workload
from tests.bursts import solo
from tests.plain_training import agreeing, rate_of_reading, rate_of_steps
from tests.workloads import mistakes, sleepy


def plan_of(part: Part) -> BurstPlan:
    """A short burst of a part."""
    return BurstPlan(measure_seconds=0.3, turn_seconds=0.05, part=part)


def burst(workload: Workload, part: Part) -> Measurement:
    """What a burst of a part of the workload's baseline measures."""
    return solo.measured(workload, plan_of(part))


def test_computing_alone_costs_no_reading() -> None:
    """A workload that waits for its loader most of the time shows what it could do."""
    workload = sleepy.build(read_seconds=0.01, step_seconds=0.01, batch_size=8, num_workers=1, persistent_workers=True)
    measured = agreeing(lambda: burst(workload, "compute"), lambda: rate_of_steps(workload, 30), within=0.15)
    assert measured.data_wait_fraction == measured.epoch_boundary_seconds == 0


def test_the_loader_alone_costs_no_step() -> None:
    """A workload that computes most of the time shows what its loader could feed; there is no loss."""
    workload = sleepy.build(read_seconds=0.002, step_seconds=0.1, batch_size=4, accumulation_steps=2)
    measured = agreeing(lambda: burst(workload, "loader"), lambda: rate_of_reading(workload, 0, 40), within=0.2)
    assert measured.data_wait_fraction > 0.9
    assert measured.final_loss is None


def test_workers_raise_the_ceiling_of_the_loader() -> None:
    """Two of them read twice as fast, once what they had prepared is used up."""
    workload = sleepy.build(read_seconds=0.004, batch_size=4, num_workers=2, persistent_workers=True)
    agreeing(lambda: burst(workload, "loader"), lambda: rate_of_reading(workload, 6, 60), within=0.2)


@pytest.mark.parametrize("part", ["compute", "loader"])
def test_a_ceiling_of_an_empty_loader_is_told(part: Part) -> None:
    """As for a whole burst."""
    found = solo.burst_of(mistakes.workload(dataset=mistakes.Stream(0)), plan_of(part))
    assert found.outcome is Outcome.CRASHED
    assert "the loader yields no batch" in (found.reason or "")
