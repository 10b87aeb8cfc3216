"""The loader whose ratio is known: by arithmetic, and by a plain loop that agrees with it."""

from __future__ import annotations

import pytest

from autotune import TrainConfig
from autotune.bursts.hosts.protocol import BurstPlan
from benchmarks import known_loader
from benchmarks.known_loader import expected_seconds
from tests.conftest import RunnerOf


def workers(count: int, prefetch: int = 2) -> TrainConfig:
    """A config with so many, which persist."""
    return TrainConfig(
        batch_size=8, num_workers=count, prefetch_factor=prefetch if count else None, persistent_workers=count > 0
    )


@pytest.mark.parametrize(
    ("config", "batches", "seconds"),
    [
        (TrainConfig(batch_size=8), 10, 10 * (4 + 1)),  # one after the other
        (workers(1), 10, 10 * 4 + 1),  # the last batch is trained on when all have been read
        (workers(2), 10, 5 * 4 + 2 * 1),  # they come two at a time
        (workers(8), 8, 4 + 8 * 1),  # all are there at once
        (workers(8), 80, 4 + 80 * 1),  # training is slower than eight workers
    ],
)
def test_an_epochs_time_is_arithmetic(config: TrainConfig, batches: int, seconds: float) -> None:
    """A batch takes four seconds to read and one to train."""
    assert expected_seconds(config, batches, 4.0, 1.0) == pytest.approx(seconds)


@pytest.mark.slow
def test_the_plain_loop_agrees_with_arithmetic() -> None:
    """Within a tenth in a quiet moment, tried several times: who sleeps wakes late on a busy machine."""
    load, step = known_loader.BATCH * known_loader.slept(known_loader.SAMPLE_SECONDS, 20), known_loader.slept(0.008, 20)
    sides = (workers(0), workers(2))
    expected = [expected_seconds(config, 20, load, step) for config in sides]
    ratio = pytest.approx(expected[0] / expected[1], rel=0.1)
    texts = [config.model_dump_json() for config in sides]
    assert any(known_loader.true_ratio(*texts, 20, 4.0) == ratio for _ in range(5))


@pytest.mark.slow
def test_a_duet_claims_about_the_truth(runner_of: RunnerOf) -> None:
    """Two short rounds: far from what a queue that was filled meanwhile would give."""
    plan = BurstPlan(measure_seconds=1.0)
    config = workers(1, prefetch=8)
    found = known_loader.claimed(runner_of(known_loader.TARGET), config, 2000, 2, plan)
    assert found["ratio"] == pytest.approx(28 / 20, rel=0.15)
