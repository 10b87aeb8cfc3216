"""Workloads whose data set is collated once."""

from __future__ import annotations

from typing import Any

from benchmarks import resident_data


def test_its_workloads_are_what_they_say() -> None:
    """Samples that never change, and a step that can be taken."""
    for build in (resident_data.small_digits, resident_data.large_digits, resident_data.table):
        workload = build()
        dataset: Any = workload.dataset
        assert (dataset[3][0] == dataset[3][0]).all()
        assert workload.batch_size == resident_data.BATCH
    assert set(resident_data.LOADER_BOUND) < set(resident_data.TARGETS)
