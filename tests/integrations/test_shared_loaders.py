"""Loaders that a framework has shared out among its ranks: read as they were before, and shared out once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

from autotune import TrainConfig, Tuned
from autotune.integrations import common
from autotune.recorder.drawing import Own
from autotune.results.result import Evaluation
from autotune.training.ranks import Rank
from autotune.workload.adapters.loaders import read_loader
from tests.factories import make_result

ROWS = TensorDataset(torch.arange(32.0)[:, None])


def shared() -> DataLoaderShard:
    """As Accelerate prepares a loader for the first of two ranks."""
    batches = BatchSampler(SequentialSampler(ROWS), 4, drop_last=False)
    return DataLoaderShard(ROWS, batch_sampler=BatchSamplerShard(batches, 2, 0))


class Stream(IterableDataset[torch.Tensor]):
    """Does not shard itself: each worker reads all of it."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(32.0)[:, None])


def evaluating(**knobs: Any) -> Tuned:
    """A config with some knobs changed, and a tuned evaluation batch size."""
    evaluation = Evaluation(batch_size=16, samples_per_second=None, ratio=1.5)
    return Tuned(TrainConfig(**knobs), result=make_result().model_copy(update={"evaluation": evaluation}))


def test_what_accelerate_has_shared_out_is_read_as_it_was() -> None:
    """Else it would count as the user's own batches, and what is made of them be shared out once more."""
    parts = read_loader(shared())
    assert (parts.batch_size, parts.batches) == (4, None)
    assert list(parts.sampler) == list(range(32))


def test_a_loader_that_is_made_again_draws_every_sample() -> None:
    """The framework takes each rank's part of it."""
    loader, missing = common.tuned_loader(Tuned(TrainConfig(batch_size=8)), shared())
    assert sorted(row.item() for (batch,) in loader for row in batch) == list(range(32))
    assert missing == {}


def test_workers_do_not_persist_where_the_framework_has_a_loader_of_another_kind() -> None:
    """It draws as it likes; torchdata's is one."""

    class Stateful(DataLoader[Any]):
        pass

    prepared = shared()
    prepared.base_dataloader = Stateful(ROWS, num_workers=1, persistent_workers=True)
    made, _ = common.tuned_loader(Tuned(TrainConfig(num_workers=1, persistent_workers=True)), DataLoader(ROWS))
    assert common.draw_as(prepared, made).keys() == {"persistent_workers"}
    assert not prepared.base_dataloader.persistent_workers


@pytest.mark.parametrize("drops", [False, True])
def test_a_last_batch_is_dropped_where_the_users_loader_drops_it(drops: bool) -> None:
    """Compiled or not."""
    config = TrainConfig(batch_size=12, compile_mode="default")
    loader, _ = common.tuned_loader(Tuned(config), DataLoader(ROWS, batch_size=4, drop_last=drops))
    assert [len(batch) for (batch,) in loader] == [12, 12, *([] if drops else [8])]


@pytest.mark.parametrize(
    "make",
    [
        lambda tuned: common.evaluation_loader(tuned, DataLoader(ROWS, batch_size=4)),
        lambda tuned: tuned.eval_dataloader(ROWS),
    ],
    ids=["framework's loader", "loader of one's own"],
)
def test_what_evaluates_reads_every_sample_on_each_rank(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks share out samples themselves, and twice would leave half of them out."""
    monkeypatch.setattr("autotune.training.tuned.this_rank", lambda: Rank(0, 2, 0, 2))
    made = make(evaluating(batch_size=8))
    assert made.batch_size == 16
    assert [int(row) for (batch,) in made for row in batch] == list(range(32))


def test_what_evaluates_is_shared_out_by_a_sampler_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each rank reads its own part."""
    monkeypatch.setattr("autotune.training.tuned.this_rank", lambda: Rank(0, 2, 0, 2))
    made = evaluating(batch_size=8).eval_dataloader(ROWS, sampler=DistributedSampler(ROWS, 2, 0, shuffle=False))
    assert [int(row) for (batch,) in made for row in batch] == list(range(0, 32, 2))


def test_what_evaluates_drops_no_more_samples_than_before() -> None:
    """Of larger batches, the last one would be more of them."""
    own: DataLoader[Any] = DataLoader(ROWS, batch_size=5, drop_last=True)
    assert common.evaluation_loader(evaluating(), own) is own


def test_what_evaluates_reads_a_stream_once() -> None:
    """The training's workers would each read all of it."""
    tuned = evaluating(num_workers=2, persistent_workers=True)
    for made in tuned.eval_dataloader(Stream()), common.evaluation_loader(tuned, DataLoader(Stream(), batch_size=4)):
        assert [len(batch) for batch in made] == [16, 16]
    assert tuned.eval_dataloader(Stream(), num_workers=1).num_workers == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("persistent_workers", True), ("prefetch_factor", 4), ("multiprocessing_context", "spawn"), ("timeout", 60)],
)
def test_what_evaluates_a_stream_has_workers_where_the_user_sets_how_they_work(name: str, value: Any) -> None:
    """Torch would refuse such an argument without workers."""
    made = evaluating(num_workers=2).eval_dataloader(Stream(), **{name: value})
    assert (made.num_workers, bool(getattr(made, name))) == (2, True)


def test_what_evaluates_has_the_users_own_arguments() -> None:
    """Those that were not tuned, and it draws as the user's loader would."""
    own: DataLoader[Any] = DataLoader(ROWS, num_workers=1, multiprocessing_context="spawn", timeout=60)
    made = common.evaluation_loader(evaluating(num_workers=2), own)
    assert (made.num_workers, made.multiprocessing_context, made.timeout) == (2, own.multiprocessing_context, 60)
    assert made.own == Own.of(own)
