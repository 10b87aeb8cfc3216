"""What compiling by blocks saves: the benchmark trains, and says it in figures."""

from __future__ import annotations

import pytest

from benchmarks import regional_compile
from benchmarks.fresh import afresh


@pytest.mark.slow
def test_a_training_is_timed_from_a_cold_cache() -> None:
    """By blocks, in a process of its own."""
    found = afresh(regional_compile.train, "charlm, 6 layers", "blocks")
    assert found["opening_seconds"] > 0
    assert found["samples_per_second"] > 0


@pytest.mark.parametrize(
    ("name", "blocks"), [("charlm, 6 layers", 6), ("asl_transformer, 6 layers", 6), ("GPT-2, 6 layers", 6)]
)
def test_the_workloads_have_blocks(name: str, blocks: int) -> None:
    """As many as they are called after."""
    assert regional_compile.count_blocks(regional_compile.WORKLOADS[name]().model) == blocks
