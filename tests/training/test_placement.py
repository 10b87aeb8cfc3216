"""A data set collated once gives the batches that it would have given, or says why it cannot, and loads as ever."""

from __future__ import annotations

import copy
import functools
import logging
import operator
import pickle
import random
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from autotune.errors import ConfigError
from autotune.knobs.config import TrainConfig
from autotune.training import placement
from autotune.training.placement import PlacedDataset, alike, look_at, place, placement_seconds
from autotune.training.tuned import Tuned

CPU = torch.device("cpu")
SAMPLES = 100
Pair = namedtuple("Pair", "image label")


@dataclass
class Sample:
    """A batch as a dataclass."""

    image: torch.Tensor
    label: torch.Tensor


class Fixed(Dataset[Any]):
    """Samples that are always the same; counts how often one is read."""

    def __init__(self, make: Callable[[int], Any] = lambda index: (torch.full((3,), float(index)), index)) -> None:
        self.make = make
        self.reads = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.make(index)


class Augmented(Dataset[torch.Tensor]):
    """Samples that chance changes now and then, by each generator that people use."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), -1.0 if self.draw() < 0.2 else float(index))


def tuned(**knobs: Any) -> Tuned:
    """A config with some knobs changed, its data set collated once."""
    return Tuned(TrainConfig(**{"batch_size": 16, "data_placement": "collated", **knobs}))


def both(dataset: Any, **kwargs: Any) -> tuple[list[Any], list[Any]]:
    """Two epochs' batches of torch's own loader, and of ours, from the same random numbers."""
    found = []
    for make in (functools.partial(DataLoader, batch_size=16), tuned().dataloader):
        torch.manual_seed(5)
        if isinstance(kwargs.get("generator"), torch.Generator):
            kwargs["generator"].manual_seed(5)
        loader: DataLoader[Any] = make(dataset, **kwargs)
        found.append([batch for _ in range(2) for batch in loader])
    return found[0], found[1]


def is_placed(loader: Any) -> bool:
    """Whether it selects its batches from a data set that was collated once."""
    return placement_seconds(loader.dataset) is not None


def numpy_draw() -> float:
    """By NumPy's global generator."""
    return float(np.random.rand())


@pytest.mark.parametrize(
    "make",
    [
        lambda index: (torch.full((3,), float(index)), index),
        lambda index: {"image": torch.full((2, 2), float(index)), "more": {"label": index, "none": torch.tensor(0)}},
        lambda index: Pair(torch.full((3,), float(index)), index / 2),
        lambda index: [torch.tensor(index, dtype=torch.uint8)],
        lambda index: torch.tensor([index, float("nan")]),
        lambda index: torch.empty(0) + index,
    ],
    ids=["tuple", "dict", "namedtuple", "list of bytes", "bare tensor with NaN", "tensors without elements"],
)
def test_batches_are_those_of_the_loader(make: Callable[[int], Any]) -> None:
    """Of any structure: the same samples in the same order, epoch after epoch, the incomplete last batch as well."""
    theirs, ours = both(Fixed(make), shuffle=True)
    assert len(theirs) == len(ours) == 14
    assert all(map(alike, theirs, ours))
    assert type(theirs[0]) is type(ours[0])


@pytest.mark.parametrize("name", ["sampler", "weighted", "batch_sampler", "generator", "drop_last", "subset"])
def test_the_users_own_arguments_decide_which_samples_come(name: str) -> None:
    """Samplers, batch samplers, generators and dropped batches."""
    dataset: Any = Subset(Fixed(), range(10, 60)) if name == "subset" else Fixed()
    arguments: dict[str, dict[str, Any]] = {
        "sampler": {"sampler": list(range(90, 10, -3))},
        "weighted": {"sampler": WeightedRandomSampler(torch.arange(1.0, 101), 40)},
        "batch_sampler": {"batch_sampler": BatchSampler(RandomSampler(dataset), 7, drop_last=True), "batch_size": 1},
        "generator": {"shuffle": True, "generator": torch.Generator()},
        "drop_last": {"drop_last": True},
        "subset": {"shuffle": True},
    }
    given = arguments[name]
    theirs, ours = both(dataset, **given)
    assert theirs
    assert all(map(alike, theirs, ours))
    assert len(theirs) == len(ours)


class Drawing(SequentialSampler):
    """A sampler of the user's, which draws a random number for each index."""

    def __iter__(self) -> Any:
        return iter(int(torch.randint(SAMPLES, ())) for _ in range(SAMPLES))


@pytest.mark.parametrize("kind", ["shuffle", "in order", "generator", "with replacement", "own sampler"])
def test_a_loop_that_draws_random_numbers_draws_the_same_ones(kind: str) -> None:
    """From torch's generator, and from one that its loader uses too."""

    def drawn(make: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(6)
        dataset = Fixed()
        arguments: dict[str, dict[str, Any]] = {
            "shuffle": {"shuffle": True},
            "in order": {},
            "generator": {"shuffle": True, "generator": generator},
            "with replacement": {"sampler": RandomSampler(dataset, replacement=True, num_samples=90)},
            "own sampler": {"sampler": Drawing(dataset)},
        }
        loader = make(dataset, **arguments[kind])
        numbers = (lambda: torch.rand(1), lambda: torch.rand(1, generator=generator))
        return [(*batch, *(draw() for draw in numbers)) for _ in range(2) for batch in loader]

    theirs, ours = drawn(functools.partial(DataLoader, batch_size=16)), drawn(tuned().dataloader)
    assert all(map(alike, theirs, ours))
    assert len(theirs) == len(ours)


@pytest.mark.parametrize(
    "indices",
    [[3, -1], [np.int64(3), np.int32(1)], torch.tensor([5, 2]), (4, 7)],
    ids=["negative", "numpy", "tensor", "tuple"],
)
def test_indices_may_be_all_that_index_a_list(indices: Any) -> None:
    """As in the user's own loader."""
    theirs, ours = both(TensorDataset(torch.arange(100.0)), batch_sampler=[indices], batch_size=1)
    assert all(map(alike, theirs, ours))


@pytest.mark.parametrize("indices", [[1.0, 2.0], [2**70], ["a"]], ids=["floats", "too large", "texts"])
def test_other_indices_are_the_data_sets_own_matter(indices: list[Any]) -> None:
    """Nothing is selected for them."""
    dataset: Any = Fixed(lambda index: torch.tensor(hash(index) % 7))
    loader = tuned().dataloader(dataset, batch_sampler=[indices])
    with pytest.warns(UserWarning, match="its sampler draws no whole numbers"):
        (batch,) = loader
    assert batch.tolist() == [hash(index) % 7 for index in indices]


def test_a_change_between_two_batches_changes_the_next_one() -> None:
    """The rest of the pass is read as it is then."""
    dataset = Fixed(lambda _: torch.zeros(3))
    loader = tuned().dataloader(dataset)
    list(loader)
    batches = iter(loader)
    before = [next(batches) for _ in range(3)]
    dataset.make = lambda _: torch.ones(3)
    with pytest.warns(UserWarning, match="changed after it had been collated"):
        after = list(batches)
    assert [float(batch.mean()) for batch in before + after] == [0] * 3 + [1] * 4
    assert [len(batch) for batch in after] == [16] * 3 + [4]


def test_a_collation_of_the_users_is_kept_where_it_works_sample_by_sample() -> None:
    """Its own structure, dataclasses and mappings of a class of their own too."""

    def collate(samples: list[Any]) -> Any:
        images, labels = default_collate(samples)
        return UserDict({"batch": Sample(images * 2, labels), "extra": None})

    theirs, ours = both(Fixed(), collate_fn=collate)
    assert all(map(alike, theirs, ours))
    assert torch.equal(ours[1]["batch"].image[0], torch.full((3,), 32.0))


def test_it_is_read_once() -> None:
    """However many epochs and loaders follow, and a little of it again, to compare."""
    dataset, config = Fixed(), tuned()
    for _ in range(3):
        for _ in config.dataloader(dataset, shuffle=True):
            pass
    assert SAMPLES < dataset.reads < 2 * SAMPLES


def test_random_numbers_stay_as_they_were() -> None:
    """A seeded training is the same with it: reading everything first draws nothing."""
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(1), random.random()
    torch.manual_seed(1)
    random.seed(1)
    place(PlacedDataset(Fixed(), default_collate, CPU))
    assert (torch.rand(1), random.random()) == expected


def test_the_data_set_looks_like_the_users() -> None:
    """What a loop asks of it has the answers that it had."""
    dataset = Fixed()
    dataset.classes = ["a", "b"]  # type: ignore[attr-defined]
    loader = tuned().dataloader(dataset)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader.dataset, Fixed)
    assert loader.dataset.classes == ["a", "b"]  # type: ignore[attr-defined]
    assert (len(loader), len(loader.dataset), loader.batch_size) == (7, SAMPLES, 16)
    assert loader.dataset[3][1] == 3
    loader.dataset.classes = ["c"]  # type: ignore[attr-defined]
    assert dataset.classes == ["c"]  # type: ignore[attr-defined]


def test_batches_are_copies() -> None:
    """A training that changes its batch in place does not change the data."""
    loader = tuned().dataloader(TensorDataset(torch.zeros(32, 2)))
    for (batch,) in loader:
        batch.add_(1)
    assert all(not batch.any() for (batch,) in loader)


NOT_PLACEABLE: dict[str, tuple[Any, Any, str]] = {
    "torch's chance": (Augmented(lambda: float(torch.rand(1))), default_collate, "differ from time to time"),
    "Python's": (Augmented(random.random), default_collate, "differ from time to time"),
    "NumPy's": (Augmented(numpy_draw), default_collate, "differ from time to time"),
    "its own": (Augmented(random.Random(0).random), default_collate, "differ from time to time"),
    "samples in columns": (Fixed(lambda index: torch.ones(index % 5)), pad_sequence, "row a sample"),
    "padded": (
        Fixed(lambda index: torch.ones(index % 50 + 1)),
        functools.partial(pad_sequence, batch_first=True),
        "one shape|time to time",
    ),
    "mixed": (
        Fixed(lambda index: torch.ones(1) * index),
        lambda samples: torch.stack(samples) - samples[0],
        "time to time",
    ),
    "words": (Fixed(lambda index: {"text": str(index)}), default_collate, "a str, which is no tensor|holds a list"),
    "fewer rows": (Fixed(), lambda samples: samples[0][0], "not one row a sample"),
    "nothing": (Fixed(), lambda samples: samples[:0], "no tensors"),
    "raises": (Fixed(lambda index: 1 / (index - 99)), default_collate, "ZeroDivisionError"),
    "empty": ([], default_collate, "no length"),
}


@pytest.mark.parametrize("name", NOT_PLACEABLE)
def test_what_cannot_be_placed_is_told(name: str) -> None:
    """By a look at some of its samples, before anything is measured."""
    dataset, collate, why = NOT_PLACEABLE[name]
    with pytest.raises(ConfigError, match=why):
        look_at(dataset, collate, [0, 1], 1e-6)


def test_samples_that_depend_on_the_epoch_are_told() -> None:
    """As far as a data set shows it."""
    dataset = Fixed()
    dataset.set_epoch = print  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="set_epoch"):
        look_at(dataset, default_collate, [0], 1e-6)


def test_keys_that_are_no_numbers_are_told() -> None:
    """A sampler may draw names of files."""
    with pytest.raises(ConfigError, match="no whole numbers"):
        look_at(Fixed(), default_collate, ["a.png"], 1e-6)


def test_a_look_tells_the_bytes_of_it_all() -> None:
    """From the samples that it has read, few of them where one takes long."""
    dataset = Fixed()
    assert look_at(dataset, default_collate, [0], 1e-6) == SAMPLES * (3 * 4 + 8)
    fast, dataset.reads = dataset.reads, 0
    assert look_at(dataset, default_collate, [0], 0.05) == SAMPLES * (3 * 4 + 8)
    assert dataset.reads < fast / 4
    with pytest.raises(ConfigError, match="too long to find out"):
        look_at(dataset, default_collate, [0], 1.0)


@pytest.mark.parametrize("placement", ["collated", "device"])
def test_what_turns_out_not_to_be_placeable_is_loaded_as_ever(placement: str) -> None:
    """A data set that was not the measured one: after a warning, training goes on, with all its samples."""
    dataset = Fixed(lambda index: torch.ones(1 + (index == 99)) * index)
    loader = tuned(data_placement=placement, batch_size=1).dataloader(dataset)
    with pytest.warns(UserWarning, match="sample by sample"):
        batches = list(loader)
    assert [int(batch.flatten()[0]) for batch in batches] == list(range(SAMPLES))
    assert not is_placed(loader)


def test_what_is_changed_afterwards_is_loaded_as_ever() -> None:
    """Another transform, another stage of a curriculum, tensors in place: what was collated would be out of date."""
    dataset = Fixed()
    stacked = StackDataset(Subset(dataset, range(8)))
    numbers = TensorDataset(torch.zeros(32, 2))

    def change() -> None:
        dataset.make = lambda _: torch.full((3,), -1.0)

    for data, act in ((dataset, change), (stacked, change), (numbers, lambda: numbers.tensors[0].fill_(-1))):
        dataset.make = lambda index: torch.full((3,), float(index))
        loader = tuned().dataloader(data)
        before = next(iter(loader))
        act()
        with pytest.warns(UserWarning, match="changed after it had been collated"):
            after = next(iter(loader))
        tensors = [part[0] if isinstance(part, (list, tuple)) else part for part in (before, after)]
        assert (tensors[0] >= 0).all()
        assert (tensors[1] == -1).all()


class Held(Dataset[torch.Tensor]):
    """Samples from values that may change in place; chance draws some augmentation, if the transform asks for it."""

    def __init__(self, samples: int = 200, images: int = 1) -> None:
        self.labels = np.zeros(samples)
        self.images = np.zeros((samples, images))
        self.weights = [0.0] * samples
        self.transform = SimpleNamespace(p=0.0, calls=0)
        self.log = logging.getLogger(__name__)
        self.cached: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.transform.calls += 1  # a change by reading is none
        self.cached[index % 20] = object()
        noise = float(random.random() < self.transform.p)
        return torch.tensor([self.labels[index], self.images[index, 0], self.weights[index], noise])


CHANGES: dict[str, Callable[[Held], Any]] = {
    "nothing": lambda _: None,
    "a sample that is read": lambda data: data[3],
    "a logger": lambda data: (data.log.isEnabledFor(7), data.log.getChild("more")),
    "an array": lambda data: operator.setitem(data.labels, slice(None), 1),
    "one label": lambda data: operator.setitem(data.labels, 7, 1),
    "a large array": lambda data: operator.setitem(data.images, slice(None), 1),
    "a list": lambda data: operator.setitem(data.weights, slice(None), [1.0] * 200),
    "the transform": lambda data: setattr(data.transform, "p", 1.0),
    "its length": lambda data: (data.weights.append(0.0), setattr(data, "labels", np.zeros(201))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_inside_of_values_are_noticed_at_the_next_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pseudo-labels, a schedule of an augmentation, samples that are added; random numbers stay as they were."""
    monkeypatch.setattr(placement, "HASHED_BYTES", 2000)
    dataset = Held(images=5)
    loader = tuned().dataloader(dataset, drop_last=True)
    list(loader)
    CHANGES[name](dataset)
    before = random.getstate()
    if name in {"nothing", "a sample that is read", "a logger"}:
        for _ in range(3):
            list(loader)
        assert is_placed(loader)
        assert before == random.getstate()
    else:
        with pytest.warns(UserWarning, match="changed after it had been collated"):
            batches = list(loader)
        assert torch.equal(torch.cat(batches), torch.stack([dataset[index] for index in range(192)]))


def test_more_than_memory_holds_is_told_before_it_is_taken() -> None:
    """By the first few samples."""

    class Huge(Fixed):
        def __len__(self) -> int:
            return 10**9

    with pytest.raises(ConfigError, match=r"more than half of the .* of memory"):
        place(PlacedDataset(Huge(lambda _: torch.zeros(1000)), default_collate, CPU))


@pytest.mark.parametrize(
    "arguments", [{"num_workers": 1}, {"batch_size": None}], ids=["workers of the user's", "batches of the data set's"]
)
def test_arguments_of_the_user_win(arguments: dict[str, Any]) -> None:
    """Where they ask for another way of loading, they get it."""
    dataset = Fixed()
    loader = tuned().dataloader(dataset, **arguments)
    assert loader.dataset is dataset


@pytest.mark.parametrize(("placement", "pinned"), [("collated", True), ("device", False)])
def test_batches_that_are_on_the_device_are_not_pinned(placement: str, pinned: bool) -> None:
    """Torch would fail, also where the user asks for it."""
    assert tuned(data_placement=placement).dataloader(Fixed(), pin_memory=True).pin_memory is pinned


def test_samplers_are_told_of_the_epoch() -> None:
    """The loader has the user's own."""
    sampler = torch.utils.data.DistributedSampler(Fixed(), num_replicas=2, rank=0, seed=3)
    loader = tuned().dataloader(Fixed(), sampler=sampler)
    assert loader.sampler is sampler
    orders = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        orders.append([int(label) for _, labels in loader for label in labels])
    assert orders[0] != orders[1]
    assert isinstance(DataLoader(Fixed()).sampler, SequentialSampler)


@pytest.mark.parametrize("name", ["loader", "dataloader"])
def test_a_loader_made_of_ours_is_ours(name: str) -> None:
    """Frameworks make the loader again, of its own data set and collation."""
    ours = getattr(tuned(), name)(Fixed())
    again = list(DataLoader(ours.dataset, batch_size=16, collate_fn=ours.collate_fn))
    twice = list(tuned().dataloader(ours.dataset, collate_fn=ours.collate_fn))
    assert all(map(alike, again, ours))
    assert all(map(alike, twice, ours))


def test_a_collation_that_is_set_later_is_used() -> None:
    """It gets samples, as ever."""
    loader = tuned().dataloader(Fixed())
    list(loader)
    loader.collate_fn = len
    assert list(loader) == [16] * 6 + [4]


def test_only_its_own_loader_reads_a_placed_data_set() -> None:
    """Another loader fails and says why; a copy and a pickle place the user's own data set anew."""
    data: Any = tuned().dataloader(TensorDataset(torch.ones(3))).dataset
    for other in (data, copy.deepcopy(data), Subset(data, range(3)), pickle.loads(pickle.dumps(data))):  # noqa: S301
        with pytest.raises(TypeError, match="its own loader reads"):
            next(iter(DataLoader(other, 2)))
        assert len(other) == 3
