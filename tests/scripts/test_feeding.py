"""Which of a script's loaders feed training in a burst: those draw from streams, and others are read as they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autotune.recorder.changes import Changes
from autotune.recorder.feeding import Feeding, Reader, Source
from autotune.recorder.stream import ITERATE, Stream

KEY = "alike"


class Burst:
    """A burst of a script whose loaders are all alike, and hold eight times a number of their own."""

    def __init__(self, keys: int = 1) -> None:
        self.feeding = Feeding([KEY] * keys, lambda: self.evaluates, self._made)
        self.evaluates = False
        self.drawn_aside = 0
        self.sources: list[Source] = []

    def loader(self, mark: int) -> DataLoader[Any]:
        """One of two batches."""
        return DataLoader(TensorDataset(torch.full((8,), mark)), batch_size=4)

    def reader(self, loader: DataLoader[Any]) -> Reader:
        """What `iter()` gives."""
        return Reader(loader, KEY, ITERATE, self.feeding, self._draws_aside, is_evaluated=self.evaluates)

    def _draws_aside(self) -> None:
        self.drawn_aside += 1

    def _made(self, loader: DataLoader[Any], key: str) -> Source:
        streams: dict[Source, Stream] = {}
        self.sources.append(Source(loader, lambda: streams, lambda: Stream(loader, Changes({}), 0)))
        return self.sources[-1]


def marks(batches: Iterator[Any], most: int = 100) -> list[int]:
    """Of batches, the loader that each is from."""
    return [int(batch[0][0]) for batch in itertools.islice(batches, most)]


@pytest.fixture
def burst() -> Burst:
    """One that has not drawn anything."""
    return Burst()


def test_training_draws_without_end(burst: Burst) -> None:
    """Epoch follows epoch; what is drawn counts."""
    assert marks(burst.reader(burst.loader(1)), 5) == [1] * 5
    assert (burst.sources[0].drawn, burst.drawn_aside) == (5, 0)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_what_is_drawn_without_gradients_is_no_training(burst: Burst, context: Callable[[], Any]) -> None:
    """It comes from that very loader to its end, whatever the mode at `iter()`; and training goes on."""
    training, validation = burst.reader(burst.loader(1)), burst.reader(burst.loader(2))
    next(training)
    with context():
        assert marks(validation) == [2, 2]
        assert marks(training) == [1, 1]
    assert marks(training, 3) == [1] * 3
    assert burst.sources[0].drawn == 4
    assert burst.drawn_aside > 0


def test_a_loader_that_is_like_one_that_is_read_hands_out_its_own_batches(burst: Burst) -> None:
    """Also where gradients are wanted as they are drawn."""
    training, validation = burst.reader(burst.loader(1)), burst.reader(burst.loader(2))
    next(training)
    assert marks(validation) == [2, 2]
    assert (len(burst.sources), burst.sources[0].drawn) == (1, 1)


def test_a_loader_that_is_made_again_has_the_stream_that_nobody_reads_any_more(burst: Burst) -> None:
    """The name that held the one before may be bound to it only after `iter()`."""
    training = burst.reader(burst.loader(1))
    next(training)
    training = burst.reader(burst.loader(2))
    assert marks(training, 3) == [1] * 3
    assert (len(burst.sources), burst.sources[0].drawn) == (1, 4)


def test_a_loader_that_the_script_trains_on_has_the_stream(burst: Burst) -> None:
    """Though it still holds the pass through another one: after the first batch that shows it."""
    former, training = burst.reader(burst.loader(1)), burst.reader(burst.loader(2))
    next(former)
    assert marks(training, 1) == [2]
    burst.feeding.trains()
    assert marks(training, 3) == [1] * 3


def test_what_is_trained_on_is_the_batch_of_training(burst: Burst) -> None:
    """Not what was validated in between, to its end."""
    training, validation = burst.reader(burst.loader(1)), burst.reader(burst.loader(2))
    next(training)
    assert marks(validation) == [2, 2]
    burst.feeding.trains()
    assert not validation.trains
    next(training)
    burst.feeding.trains()
    assert not training.trains


def test_two_loaders_that_are_alike_have_a_stream_each() -> None:
    """Also made again, when they are read in the order in which they were."""
    burst = Burst(keys=2)
    for _ in range(2):
        both = [burst.reader(burst.loader(1)), burst.reader(burst.loader(2))]
        assert [marks(one, 3) for one in both] == [[1] * 3, [2] * 3]
    assert len(burst.sources) == 2


def test_a_pass_that_began_in_evaluation_is_its_own_until_the_script_trains_so(burst: Burst) -> None:
    """By the mode of the model."""
    loader = burst.loader(1)
    burst.evaluates = True
    evaluated, whole = burst.reader(loader), burst.reader(loader)
    assert marks(whole) == [1, 1]
    next(evaluated)
    burst.evaluates = False
    assert marks(evaluated, 5) == [1] * 5
    assert burst.sources[0].drawn == 5


def test_passes_that_are_left_off_are_told_by_those_that_train(burst: Burst) -> None:
    """A validation from the same loader in between is no pass."""
    loader = DataLoader(TensorDataset(torch.zeros(40)), batch_size=4)
    for _ in range(3):
        marks(burst.reader(loader), 3)
        with torch.no_grad():
            marks(burst.reader(loader))
    next(burst.reader(loader))
    assert burst.sources[0].own_pass == 3


def test_a_pass_has_a_length_and_what_torch_gives_its_iterators(burst: Burst) -> None:
    """Frameworks ask for both."""
    reader = burst.reader(burst.loader(1))
    assert len(reader) == 2
    next(reader)
    assert reader._num_workers == 0
    with pytest.raises(AttributeError):
        _ = reader.nothing_of_this_name


def test_a_pass_has_what_torch_gives_its_iterators_before_its_first_batch(burst: Burst) -> None:
    """As it has outside bursts."""
    assert burst.reader(burst.loader(1))._num_workers == 0
