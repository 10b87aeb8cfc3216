"""What processes of the proof hold is looked at between their blocks: what leaks is found, and what does not is not."""

from __future__ import annotations

import sys

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.measuring.growth import FEWEST_PROCESSES, slope
from autotune.measuring.records import Measurement, Point, pool
from tests.conftest import RunnerOf
from tests.workloads.growing import STEP_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what processes hold")
POINT = Point(config=TrainConfig(batch_size=32, num_threads=1))


def proof(runner_of: RunnerOf, target: str) -> Measurement:
    """A training in fresh processes, pooled as the rounds of a proof are."""
    runner = runner_of(f"tests.workloads.growing:{target}")
    bursts = [runner.run(POINT, BurstPlan(measure_seconds=1.5), 60) for _ in range(FEWEST_PROCESSES + 1)]
    measured = [burst.measurement for burst in bursts if burst.measurement is not None]
    assert len(measured) == len(bursts), bursts
    return pool(measured)


def test_what_each_step_keeps_is_found(runner_of: RunnerOf) -> None:
    """A file that stays open, and a quarter of a megabyte: as many a second as there are steps."""
    measured = proof(runner_of, "build_that_keeps")
    rate = measured.samples_per_second
    files, memory = (slope(measured.looks, what, rate) for what in ("open files", "host memory"))
    assert files is not None
    assert files[0] == pytest.approx(rate / 32, rel=0.2)
    assert memory is not None
    assert memory[0] == pytest.approx(STEP_BYTES * rate / 32, rel=0.3)
    assert slope(measured.looks, "shared memory", rate) is None


@pytest.mark.slow
def test_a_training_that_keeps_nothing_does_not_grow(runner_of: RunnerOf) -> None:
    """Its processes were looked at as often, and nothing is said of them."""
    measured = proof(runner_of, "build")
    assert {look.process for look in measured.looks} == set(range(FEWEST_PROCESSES + 1))
    assert all(look.host_bytes and look.open_files for look in measured.looks)
    for what in ("host memory", "shared memory", "open files"):
        assert slope(measured.looks, what, measured.samples_per_second) is None
