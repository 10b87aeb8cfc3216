"""Variable lengths: the largest samples are found, and a config has run on a batch of them before it can win."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import SubsetRandomSampler

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.jobs.feed import Feed
from autotune.bursts.jobs.longest_samples import find_largest, worst_batch
from autotune.bursts.jobs.trainer import Trainer
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from autotune.training.tuned import Tuned
from tests.conftest import RunnerOf
from tests.workloads import lengths, mistakes

PLAN = BurstPlan(measure_seconds=0.3)


def test_the_largest_are_found_by_the_bytes_of_their_tensors() -> None:
    """Without a size of the user's own, the tensors' bytes tell."""
    largest = find_largest(lengths.build())
    assert largest[0] == lengths.LONGEST
    assert len(largest) == 64


def test_sparse_samples_are_measured_by_what_they_store() -> None:
    """A sample with more entries is larger, though all have one shape."""
    samples = [torch.eye(4)[: 1 + row].to_sparse() for row in range(4)]
    workload = dataclasses.replace(lengths.build(), dataset=samples)
    assert find_largest(workload) == (3, 2, 1, 0)


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


def test_repeated_samples_are_samples_of_their_own() -> None:
    """A collation may take out of each sample what it has read, as those of transformers do."""

    def collate(samples: list[dict[str, int]]) -> list[int]:
        return [sample.pop("label") for sample in samples]

    labels = mistakes.Mapped(lambda index: {"label": index})
    assert worst_batch(mistakes.workload(dataset=labels, collate_fn=collate), (7, 3), 4) == [7, 3, 7, 3]


def test_both_steps_on_the_worst_batch_see_all_of_it() -> None:
    """A loss may take out of its batch what it has read."""

    def loss(model: nn.Module, batch: mistakes.Encoding) -> torch.Tensor:
        return functional.cross_entropy(model(batch["features"]), batch.pop("labels"))

    samples = mistakes.Mapped(lambda index: {"features": torch.ones(4), "labels": index % 2})
    workload = mistakes.workload(dataset=samples, collate_fn=mistakes.encode, loss=loss)
    tuned = Tuned(workload.baseline_config)
    trainer = Trainer(workload, tuned, Feed(workload, tuned))
    trainer.train_on_worst((7, 3))
    assert trainer.loss is not None


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
