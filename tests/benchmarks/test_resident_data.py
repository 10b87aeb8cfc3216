"""A data set that is collated once, in the independent loop and in duets: a short round of each."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.bursts.hosts.protocol import BurstPlan
from benchmarks import resident_data


def test_its_workloads_are_what_they_say() -> None:
    """Samples that never change, and a step that can be taken."""
    for build in (resident_data.small_digits, resident_data.large_digits, resident_data.table):
        workload = build()
        dataset: Any = workload.dataset
        assert (dataset[3][0] == dataset[3][0]).all()
        assert workload.batch_size == resident_data.BATCH
    assert set(resident_data.LOADER_BOUND) < set(resident_data.TARGETS)


@pytest.mark.slow
def test_it_is_faster_where_loading_is_the_limit() -> None:
    """By a rough figure of a second or two on each side, and autotune claims about as much."""
    found = resident_data.row("table", 2, 3.0, BurstPlan(measure_seconds=1.0))
    assert found["collated_over_loader"]["ratio"] > 1.2
    assert found["claimed"]["ratio"] == pytest.approx(found["collated_over_loader"]["ratio"], rel=0.4)
    assert 0 < found["placement_seconds"] < 30
    assert found["workload"] in resident_data.described(found)
