"""Variable lengths: the largest samples are found, and a config has run on a batch of them before it can win."""

from __future__ import annotations

import dataclasses

from torch.utils.data import SubsetRandomSampler

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.jobs.longest_samples import find_largest, worst_batch
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from tests.conftest import RunnerOf
from tests.workloads import lengths

PLAN = BurstPlan(measure_seconds=0.3)


def test_the_largest_are_found_by_the_bytes_of_their_tensors() -> None:
    """Without a size of the user's own, the tensors' bytes tell."""
    largest = find_largest(lengths.build())
    assert largest[0] == lengths.LONGEST
    assert len(largest) == 64


def test_the_users_own_measure_wins() -> None:
    """`sample_size` decides where it is given."""
    assert find_largest(lengths.build_with_sample_size())[0] == lengths.SHORTEST


def test_only_what_training_draws_is_looked_at() -> None:
    """A sampler that leaves out the longest sample keeps it out of the worst batch."""
    few = [index for index in range(50) if index != lengths.LONGEST]
    workload = dataclasses.replace(lengths.build(), sampler=SubsetRandomSampler(few))
    assert set(find_largest(workload)) == set(few)


def test_an_iterable_dataset_has_no_largest() -> None:
    """There is no index to come back to."""
    assert find_largest(lengths.build_iterable()) == ()


def test_the_worst_batch_is_full() -> None:
    """A few large samples are repeated to a full batch."""
    batch, _ = worst_batch(lengths.build(), (lengths.LONGEST,), 8)
    assert batch.shape == (8, lengths.LONGEST_LENGTH, lengths.WIDTH)


def test_a_config_that_fails_on_its_worst_batch_is_oom(runner_of: RunnerOf) -> None:
    """Memory that holds for the batches that happened to come, but not for the longest, is not enough."""
    runner = runner_of("tests.workloads.lengths:build_rarely_too_long")
    assert runner.check(30).largest_samples[0] == lengths.LONGEST
    burst = runner.run(Point(config=TrainConfig(batch_size=4)), PLAN, 30)
    assert burst.outcome is Outcome.OOM


def test_the_loader_alone_does_not_stand_for_training(runner_of: RunnerOf) -> None:
    """A ceiling of a config's loader may be asked for first: its training has the largest samples still to come."""
    runner = runner_of("tests.workloads.lengths:build_rarely_too_long")
    runner.check(30)
    point = Point(config=TrainConfig(batch_size=4))
    assert runner.run(point, PLAN.model_copy(update={"part": "loader"}), 30).ok
    assert runner.run(point, PLAN, 30).outcome is Outcome.OOM
