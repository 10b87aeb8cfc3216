"""The stream of a script's loader: the same samples in the same order for every config, epoch after epoch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from autotune.recorder.changes import Changes
from autotune.recorder.stream import Stream

DATA = TensorDataset(torch.arange(40))


def stream(loader: DataLoader[Any], *, seed: int = 0, **changes: Any) -> Stream:
    """A stream of a loader with some of its arguments changed."""
    return Stream(loader, Changes({"loader": changes}), seed, lambda: None, cached=False)


def samples(of: Stream, batches: int) -> list[int]:
    """What so many batches hold."""
    return list(itertools.chain.from_iterable(batch[0].tolist() for batch in itertools.islice(of, batches)))


def loader(**arguments: Any) -> DataLoader[Any]:
    """A loader of forty numbers."""
    return DataLoader(DATA, **{"batch_size": 8, "shuffle": True, **arguments})


@pytest.mark.parametrize(
    "changes", [{"batch_size": 4}, {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}]
)
def test_another_config_draws_the_same_samples(changes: dict[str, Any]) -> None:
    """Over two epochs, whatever the batch size and the workers."""
    batches = 10 * (8 // changes.get("batch_size", 8))
    assert samples(stream(loader()), 10) == samples(stream(loader(), **changes), batches)


def test_each_epoch_has_an_order_of_its_own_and_holds_all_samples() -> None:
    """Two epochs of five batches."""
    drawn = samples(stream(loader()), 10)
    first, second = drawn[:40], drawn[40:]
    assert first != second
    assert sorted(first) == sorted(second) == list(range(40))


def test_a_stream_begins_again_where_it_is_told_to() -> None:
    """Whoever starts at sample 16 draws what whoever began at 0 draws from there on."""
    whole, part = stream(loader()), stream(loader())
    whole.restart(0)
    part.restart(16)
    assert samples(whole, 5)[16:] == samples(part, 3)
    assert part.position == 40


def test_a_loader_that_was_given_a_batch_sampler_is_made_again_with_its_size() -> None:
    """As Accelerate makes its loaders."""
    given = DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 8, drop_last=False))
    assert samples(stream(given), 5) == samples(stream(given, batch_size=4), 10)


def test_own_batches_are_kept() -> None:
    """A sampler of batches of the script's own decides what lies together."""

    class Pairs(BatchSampler):
        def __iter__(self) -> Any:
            return iter([[0, 1], [2, 3, 4]])

    given = DataLoader(DATA, batch_sampler=Pairs(SequentialSampler(DATA), 2, drop_last=False))
    drawn = stream(given)
    assert [next(drawn)[0].tolist() for _ in range(3)] == [[0, 1], [2, 3, 4], [0, 1]]
    assert drawn.position == 7


def test_a_data_set_that_yields_batches_is_counted_by_their_first_dimension() -> None:
    """Without a batch size each item is a batch."""
    given = DataLoader(TensorDataset(torch.zeros(6, 5)), batch_size=None)
    drawn = stream(given)
    next(drawn)
    assert drawn.position == 5


def test_a_dropped_last_batch_counts_for_the_place_but_not_as_samples() -> None:
    """Forty samples in batches of twelve: three are trained on, and the next epoch begins at 40."""
    drawn = stream(loader(batch_size=12, drop_last=True))
    for _ in range(4):
        next(drawn)
    assert (drawn.position, drawn.samples) == (52, 48)


def test_cached_batches_are_not_read_again() -> None:
    """For the computing alone: four batches, over and over."""
    of_loader = Stream(loader(), Changes({}), 0, lambda: None, cached=True)
    drawn = [next(of_loader)[0].tolist() for _ in range(8)]
    assert drawn[:4] == drawn[4:]
