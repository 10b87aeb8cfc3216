"""The stream of a script's loader: the same samples in the same order for every config, epoch after epoch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler, TensorDataset

from autotune.recorder.changes import Changes
from autotune.recorder.feeding import Source
from autotune.recorder.stream import Stream
from autotune.timing.endless import NoBatchError

DATA = TensorDataset(torch.arange(40))


def stream(loader: DataLoader[Any], *, seed: int = 0, **changes: Any) -> Stream:
    """A stream of a loader with some of its arguments changed."""
    return Stream(loader, Changes({"loader": changes}), seed, cached=False)


def source(given: DataLoader[Any], **changes: Any) -> Source:
    """What a script draws from that plays one config."""
    streams: dict[Source, Stream] = {}
    return Source(given, lambda: streams, lambda: stream(given, **changes))


def batches_of(drawn: Stream | Source, count: int) -> list[Any]:
    """The next batches; a stream hands out their samples too, a source does not."""
    batches = itertools.islice(drawn, count)
    return [batch for _, batch in batches] if isinstance(drawn, Stream) else list(batches)


def samples(of: Stream | Source, batches: int) -> list[int]:
    """What the next batches hold."""
    return list(itertools.chain.from_iterable(batch[0].tolist() for batch in batches_of(of, batches)))


def loader(**arguments: Any) -> DataLoader[Any]:
    """A loader of forty numbers."""
    return DataLoader(DATA, **{"batch_size": 8, "shuffle": True, **arguments})


class Shuffled(BatchSampler):
    """A script's own batches, by random numbers of the process."""

    def __init__(self) -> None:
        super().__init__(RandomSampler(DATA), 8, drop_last=False)


class BatchesOf(Sampler[list[int]]):
    """Batches of a script's own, without a length."""

    def __init__(self, batches: Iterable[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class Filtering(DataLoader[Any]):
    """A loader that changes batches where it makes its iterator, as PyG's loaders do."""

    def _get_iterator(self) -> Any:
        return ((*batch, "filtered") for batch in super()._get_iterator())  # type: ignore[misc]


class Endless(Sampler[Any]):
    """Draws from another sampler over and over; not quite for ever, so that who lists all of it is found out."""

    def __init__(self, source: Any) -> None:
        self.sampler = source

    def __iter__(self) -> Iterator[Any]:
        for _ in range(1000):
            yield from iter(self.sampler)
        raise AssertionError("all of it was drawn")


class EndlessOfALength(Endless):
    """As the samplers of MMEngine, whose length is that of the data set."""

    def __len__(self) -> int:
        return len(self.sampler)


class EndlessLoader(DataLoader[Any]):
    """As YOLOv5 and timm make theirs: one iterator for all epochs, whose workers persist."""

    def __init__(self) -> None:
        super().__init__(DATA, batch_size=8, shuffle=True)
        object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)  # type: ignore[union-attr]


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
    assert [batch[0].tolist() for batch in batches_of(drawn, 3)] == [[0, 1], [2, 3, 4], [0, 1]]
    assert drawn.position == 7


@pytest.mark.parametrize("start", [16, 40, 96])
def test_own_batches_go_on_in_the_epoch_that_the_place_lies_in(start: int) -> None:
    """A side that begins there draws what one that has trained as far draws: within an epoch, at its end, after two."""
    whole, part = (stream(DataLoader(DATA, batch_sampler=Shuffled())) for _ in range(2))
    whole.restart(0)
    part.restart(start)
    assert samples(whole, 20)[start:] == samples(part, 20 - start // 8)


def test_own_batches_of_which_there_are_none_are_told() -> None:
    """No epoch holds the place that is looked for."""
    drawn = stream(DataLoader(DATA, batch_sampler=BatchesOf([])))
    drawn.restart(16)
    with pytest.raises(NoBatchError):
        next(drawn)


@pytest.mark.parametrize(
    "endless",
    [
        EndlessLoader,
        lambda: loader(shuffle=None, sampler=EndlessOfALength(RandomSampler(DATA))),
        lambda: DataLoader(DATA, batch_sampler=EndlessOfALength(BatchSampler(RandomSampler(DATA), 8, drop_last=False))),
    ],
    ids=["loader", "sampler", "batch sampler"],
)
def test_a_sampler_without_an_end_is_not_drawn_to_its_end(endless: Callable[[], DataLoader[Any]]) -> None:
    """Two sides draw the same samples of it, also where one begins later; each epoch holds them all."""
    whole, part = stream(endless()), stream(endless())
    whole.restart(0)
    part.restart(56)
    drawn = samples(whole, 15)
    assert drawn[56:] == samples(part, 8)
    assert sorted(drawn[:40]) == sorted(drawn[40:80]) == list(range(40))


def test_batches_without_a_length_are_drawn_to_their_end() -> None:
    """However many there are: then the next epoch begins."""
    drawn = stream(DataLoader(DATA, batch_sampler=BatchesOf([[index % 40] for index in range(600)])))
    assert samples(drawn, 603)[599:] == [599 % 40, 0, 1, 2]


@pytest.mark.parametrize(("changes", "batches"), [({}, 5), ({"batch_size": 4}, 5), ({"batch_size": 20}, 2)])
def test_a_script_has_drawn_its_epoch_by_batches_or_by_samples(changes: dict[str, Any], batches: int) -> None:
    """The script counts five batches of eight, or forty samples: whichever comes first runs out."""
    drawn = source(loader(), **changes)
    drawn.stream.restart(24)
    samples(drawn, batches - 1)
    assert not drawn.has_passed_epoch
    next(drawn)
    assert drawn.has_passed_epoch


@pytest.mark.parametrize("own", [False, True], ids=["torch's batches", "own batches"])
def test_a_loader_that_is_left_off_begins_anew_after_as_many_batches(own: bool) -> None:
    """Three of five: what each epoch begins with, and then its workers start again."""
    makes = (lambda: DataLoader(DATA, batch_sampler=Shuffled())) if own else loader
    whole = stream(makes())
    part = Stream(makes(), Changes({"loader": {}}), 0, pass_batches=3)
    whole.restart(0)
    part.restart(0)
    epochs = samples(whole, 10)
    assert samples(part, 6) == [*epochs[:24], *epochs[40:64]]
    assert [after_epoch for *_, after_epoch in part.starts] == [False, True]
    assert own or part.epoch_samples == 24


def test_an_end_before_the_end_of_the_epoch_shows_when_it_comes_twice() -> None:
    """Once it may have been a trial; a pass of no batch, or of all of them, is no end."""
    drawn = source(loader())
    seen = []
    for batches in (0, 5, 5, 2, 3, 3):
        drawn.note_pass()
        samples(drawn, batches)
        seen.append(drawn.own_pass)
    drawn.note_pass()
    assert (seen, drawn.own_pass) == ([None] * 6, 3)


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


def test_a_place_after_the_last_whole_batch_lies_before_the_next_epoch() -> None:
    """Four samples are left of the forty, which are dropped: a player with smaller batches may have come there."""
    drawn = stream(loader(batch_size=12, drop_last=True))
    drawn.restart(36)
    assert len(samples(drawn, 1)) == 12
    assert (drawn.position, len(drawn.starts)) == (52, 2)


@pytest.mark.parametrize(("data", "cached"), [(40, 4), (16, 2)])
def test_cached_batches_are_read_once_before_all_else(data: int, cached: int) -> None:
    """For the computing alone: four batches or a whole epoch, over and over, from wherever the stream goes on."""
    given = DataLoader(TensorDataset(torch.arange(data)), batch_size=8, shuffle=True)
    of_loader = Stream(given, Changes({}), 0, cached=True)
    drawn = [batch[0].tolist() for batch in batches_of(of_loader, cached)]
    of_loader.restart(24)
    assert [batch[0].tolist() for batch in batches_of(of_loader, cached)] == drawn
    assert (of_loader.starts, of_loader.is_between_epochs) == ([], False)


def test_an_epoch_of_a_data_set_that_yields_batches_holds_their_samples() -> None:
    """Its sampler counts batches: 5 of 8 rows each, whose order is the seed's."""

    class Eights(Dataset[Any]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return torch.arange(8 * index, 8 * index + 8)

    given = DataLoader(Eights(), batch_size=None, shuffle=True)
    first, second = (Stream(given, Changes({}), 3, usual_samples=8) for _ in range(2))
    assert first.epoch_samples == 40
    drawn = [batch.tolist() for batch in batches_of(first, 7)]
    assert first.position == 56
    assert drawn == [batch.tolist() for batch in batches_of(second, 7)]
    assert sorted(row for batch in drawn[:5] for row in batch) == list(range(40))


@pytest.mark.parametrize(("workers", "timeout"), [(2, 30.0), (0, 0)])
def test_a_loader_waits_for_its_workers_as_long_as_before(workers: int, timeout: float) -> None:
    """A worker that hangs ends training as the script wants it; without workers there is nobody to wait for."""
    made = Changes({"loader": {"num_workers": workers}}).arguments(loader(num_workers=1, timeout=30.0))
    assert made.get("timeout", 0) == timeout


class Told(Dataset[torch.Tensor]):
    """Counts how often it was read, in whatever process."""

    def __init__(self) -> None:
        self.reads = torch.zeros(1).share_memory_()

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        self.reads += 1
        return torch.ones(1)


def test_workers_that_are_held_read_nothing_until_they_are_released() -> None:
    """Between two blocks, in which nothing is timed; the queue has room for hundreds."""
    data = Told()
    of = stream(DataLoader(data, batch_size=1, num_workers=2, prefetch_factor=400))
    next(of)
    of.hold_workers()
    time.sleep(0.1)  # a signal may take a moment
    read = float(data.reads)
    time.sleep(0.3)
    assert float(data.reads) == read
    of.release_workers()
    deadline = time.monotonic() + 30
    while float(data.reads) == read:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_makes_its_own_iterator_is_streamed_as_it_is(workers: int) -> None:
    """Epoch after epoch, each in an order of the seed's; samples are those that the sampler drew."""

    def drawn() -> tuple[list[list[int]], set[str], int]:
        made = stream(Filtering(DATA, batch_size=16, shuffle=True, num_workers=workers), seed=3)
        batches = batches_of(made, 6)
        return [batch[0].tolist() for batch in batches], {batch[1] for batch in batches}, made.position

    first, filtered, position = drawn()
    torch.rand(1)  # the script's own random numbers are no matter
    assert drawn() == (first, filtered, position)
    assert filtered == {"filtered"}
    assert (sorted(itertools.chain.from_iterable(first[:3])), position) == (list(range(40)), 80)
    assert first[:3] != first[3:]
