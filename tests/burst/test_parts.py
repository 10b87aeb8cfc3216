"""Ceilings: what one part of training does alone. Time is spent asleep, so that the rates hold on a busy machine."""

from __future__ import annotations

import pytest

from autotune.burst.feed import NoBatchError
from autotune.burst.loop import measure_burst
from autotune.burst.protocol import BurstPlan, Part
from autotune.measurement import Measurement
from autotune.runtime import Tuned
from autotune.workload import Workload
from tests.workloads import mistakes, sleepy


def burst(workload: Workload, part: Part) -> Measurement:
    """A short burst of a part of the workload's baseline."""
    plan = BurstPlan(warmup_seconds=0.3, measure_seconds=0.3, block_seconds=0.03, part=part)
    return measure_burst(workload, Tuned(workload.baseline_config), plan, start_seconds=0.0, build_seconds=0.0)


def test_computing_alone_costs_no_reading() -> None:
    """A workload that waits for its loader most of the time shows what it could do."""
    workload = sleepy.build(read_seconds=0.01, step_seconds=0.01, batch_size=8, num_workers=1, persistent_workers=True)
    measured = burst(workload, "compute")
    assert measured.samples_per_second == pytest.approx(8 / 0.01, rel=0.15)
    assert measured.data_wait_fraction == measured.epoch_boundary_seconds == 0


def test_the_loader_alone_costs_no_step() -> None:
    """A workload that computes most of the time shows what its loader could feed; there is no loss."""
    workload = sleepy.build(read_seconds=0.002, step_seconds=0.1, batch_size=4, accumulation_steps=2)
    measured = burst(workload, "loader")
    assert measured.samples_per_second == pytest.approx(1 / 0.002, rel=0.2)
    assert measured.data_wait_fraction > 0.9
    assert measured.final_loss is None


def test_workers_raise_the_ceiling_of_the_loader() -> None:
    """Two of them read twice as fast, once what they had prepared is used up."""
    workload = sleepy.build(read_seconds=0.004, batch_size=4, num_workers=2, persistent_workers=True)
    measured = burst(workload, "loader")
    assert measured.samples_per_second == pytest.approx(2 / 0.004, rel=0.25)


@pytest.mark.parametrize("part", ["compute", "loader"])
def test_a_ceiling_of_an_empty_loader_is_told(part: Part) -> None:
    """As for a whole burst."""
    with pytest.raises(NoBatchError):
        burst(mistakes.workload(dataset=mistakes.Stream(0)), part)
