"""A loader in the place of a script's own draws random numbers when that one would: training sees the same."""

from __future__ import annotations

import copy
import functools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, WeightedRandomSampler

from autotune import TrainConfig, Tuned
from autotune.recorder import drawing
from autotune.recorder.changes import Changes
from autotune.recorder.drawing import INDICES_DRAW, INDICES_FED_BACK, NUMPYS, PYTHONS, READS_DRAW, TORCHS, WORKERS_DRAW
from autotune.recorder.launched import StandIn
from autotune.recorder.rewinding import LEFT_EARLY

SAMPLES, EPOCHS = 24, 3


class Rows(Dataset[int]):
    """Each sample is its index, from the first one."""

    first = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return self.first + index


class Augmented(Rows):
    """Draws a number for each sample."""

    def __getitem__(self, index: int) -> int:
        return index + int(random.random())


class Noisy(Rows):
    """Draws from each generator that torch seeds in workers."""

    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        drawn = random.random(), float(np.random.rand()), torch.rand(1).item()
        return self.first + index, *drawn, info and info.seed


def seeded(worker: int) -> None:
    """As guides to reproducibility have it."""
    random.seed(torch.initial_seed() + worker)


def sharded(worker: int) -> None:
    """Changes the data set of a worker, and would change it again."""
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.first += 100 * (worker + 1)


class Counting(Noisy):
    """Counts what it reads, and makes a generator of its own with its first sample."""

    read, own = 0, None

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        self.own = self.own or random.Random(torch.initial_seed())
        return *super().__getitem__(index), self.read, self.own.random()


def once(worker: int) -> None:
    """Cannot be called twice in a process, like some functions of torch."""
    assert "begun" not in sys.modules
    sys.modules["begun"] = sys


class Shuffled:
    """Batches that are shuffled as soon as an iterator is made."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = [[2 * number, 2 * number + 1] for number in range(SAMPLES // 2)]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self) -> int:
        return SAMPLES // 2


class Drawn(Shuffled):
    """Batches that are drawn one by one."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield [random.randrange(SAMPLES)]


class Hardest(Shuffled):
    """Batches by losses; counts them."""

    def __init__(self) -> None:
        self.losses, self.drawn = torch.zeros(SAMPLES), 0

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            self.drawn += 1
            yield self.losses.topk(2).indices.tolist()


class Picked(Shuffled):
    """Batches that are drawn one by one, from a generator of its own."""

    def __init__(self) -> None:
        self.generator = own_generator()

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield torch.randint(SAMPLES, (2,), generator=self.generator).tolist()


def own_generator() -> torch.Generator:
    """A new one, always the same."""
    return torch.Generator().manual_seed(5)


def replacing(generator: torch.Generator | None = None) -> RandomSampler:
    """Draws 32 indices at once: the ninth batch of four needs the next ones."""
    return RandomSampler(range(SAMPLES), replacement=True, num_samples=100, generator=generator or own_generator())


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"batch_size": 4, "shuffle": True},
    "own generator": lambda: {"batch_size": 4, "shuffle": True, "generator": own_generator()},
    "incomplete": lambda: {"batch_size": 5, "sampler": RandomSampler(range(SAMPLES), generator=own_generator())},
    "replacement": lambda: {"batch_size": 4, "sampler": replacing(), "generator": own_generator()},
    "weighted": lambda: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)},
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "own batches": lambda: {"batch_sampler": Shuffled()},
    "torch's batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(SAMPLES)), 4, drop_last=True)},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {"num_workers": 0},
    "one": {"num_workers": 1, "prefetch_factor": 2},
    "persistent": {"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True},
    "many ahead": {"num_workers": 1, "prefetch_factor": 8, "persistent_workers": True},
}
CHANGES = [
    ("none", "one"), ("none", "persistent"), ("one", "none"), ("one", "persistent"), ("persistent", "one"),
    ("persistent", "many ahead"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _said() -> Iterator[None]:
    """What one test has heard is said to the next one, too."""
    drawing._checked.clear()
    yield
    drawing._checked.clear()


def passes(loader: DataLoader[Any], read: Callable[[DataLoader[Any]], Iterator[Any]], most: int | None) -> list[Any]:
    """Samples of each epoch, and the random numbers that come before its first batch, and after its end.

    Args:
        loader: The script's.
        read: Makes an iterator of it, or of its stand-in.
        most: Batches that are asked for; None: all, and the end.
    """
    torch.manual_seed(1)
    random.seed(1)
    epochs = []
    for _ in range(EPOCHS):
        batches = read(loader)
        before = torch.rand(1).item()
        drawn = [next(batches) for _ in range(most or len(loader))]
        if most is None:
            assert next(batches, None) is None
        del batches
        own = loader.generator.initial_seed() if loader.generator is not None else None
        epochs.append([before, *map(str, drawn), torch.rand(1).item(), random.random(), own])
        if loader.generator is not None:
            epochs.append(loader.generator.get_state().tolist())
    return epochs


def standing_in(changes: dict[str, Any], say: Callable[[str], None]) -> Callable[[DataLoader[Any]], Iterator[Any]]:
    """Reads from the stand-in of a script's loader."""
    stand_ins: list[StandIn] = []

    def read(loader: DataLoader[Any]) -> Iterator[Any]:
        goes_on = bool(stand_ins)
        if not stand_ins:
            stand_ins.append(StandIn(Changes({"loader": changes}).arguments(loader), say))
        return stand_ins[0].read(loader, goes_on=goes_on)

    return read


def said_of(loader: DataLoader[Any], changes: dict[str, Any]) -> list[str]:
    """What is said in this process in the first epoch."""
    said: list[str] = []
    list(standing_in(changes, said.append)(loader))
    return said


@pytest.mark.parametrize(("own", "changed"), CHANGES)
@pytest.mark.parametrize(
    ("sampler", "most"),
    [
        *((sampler, None) for sampler in SAMPLERS),
        *(("own generator", most) for most in (2, 6)),
        ("incomplete", 2),
        ("incomplete", 4),
        ("replacement", 7),
    ],
)
def test_samples_and_random_numbers_are_those_of_the_scripts_own_loader(
    own: str, changed: str, sampler: str, most: int | None
) -> None:
    """In each epoch, also where the script leaves it early, counts batches, or draws before it asks for the first."""
    expected = passes(DataLoader(Rows(), **SAMPLERS[sampler](), **SETTINGS[own]), iter, most)
    found = passes(
        DataLoader(Rows(), **SAMPLERS[sampler](), **SETTINGS[own]), standing_in(SETTINGS[changed], print), most
    )
    assert found == expected


def shares_with_training(read: Callable[[DataLoader[Any]], Iterator[Any]]) -> list[Any]:
    """Training draws from the shuffle's generator, and leaves each epoch right after a batch."""
    generator, drawn = own_generator(), []
    loader: DataLoader[Any] = DataLoader(Rows(), 4, shuffle=True, generator=generator)
    for _ in range(EPOCHS):
        for number, batch in enumerate(read(loader)):
            if number == 2:
                break
            drawn.append((batch.tolist(), torch.rand(1, generator=generator).item()))
    return drawn


def keeps_its_iterator(read: Callable[[DataLoader[Any]], Iterator[Any]]) -> list[Any]:
    """The last one is still there when the next begins; the loader draws seeds from the sampler's generator."""
    generator, drawn = own_generator(), []
    loader: DataLoader[Any] = DataLoader(Rows(), 4, sampler=replacing(generator), generator=generator)
    for _ in range(EPOCHS):
        batches = read(loader)
        drawn += [next(batches).tolist() for _ in range(5)]
    return drawn


@pytest.mark.parametrize("train", [shares_with_training, keeps_its_iterator])
def test_only_draws_that_came_to_nothing_are_taken_back(train: Callable[..., list[Any]]) -> None:
    """Others that share a generator with a sampler draw what they would draw without workers."""
    assert train(standing_in(SETTINGS["persistent"], print)) == train(iter)


@pytest.mark.parametrize(("most", "told"), [(3, [LEFT_EARLY]), (SAMPLES // 2, [])])
def test_a_sampler_of_ones_own_is_not_rewound(most: int, told: list[str]) -> None:
    """It may hold a position as well; a line says so where epochs are left early."""
    said: list[str] = []
    read = standing_in(SETTINGS["one"], said.append)
    for _ in range(2):
        batches = read(DataLoader(Rows(), batch_sampler=Picked()))
        for _ in range(most):
            next(batches)
        del batches
    assert said == told


def test_a_pass_that_was_left_is_named_also_where_another_has_begun() -> None:
    """Its iterator is kept until then."""
    said: list[str] = []
    read, loader = standing_in(SETTINGS["one"], said.append), DataLoader(Rows(), batch_sampler=Picked())
    left = read(loader)
    next(left)
    other = read(loader)
    del left
    assert said == [LEFT_EARLY]
    del other


@pytest.mark.parametrize(
    ("data", "begin", "context", "persists"),
    [
        (Noisy, None, None, True),
        (Noisy, seeded, None, True),
        pytest.param(Noisy, seeded, "spawn", True, marks=pytest.mark.slow),
        (Noisy, sharded, None, False),
        (Noisy, once, None, False),
        (Counting, None, None, False),
    ],
)
def test_workers_that_persist_begin_each_epoch_as_new_ones_do(
    data: type[Rows], begin: Callable[[int], None] | None, context: str | None, persists: bool
) -> None:
    """Also where the script leaves an epoch early. They are new ones where a second beginning would differ."""

    def own() -> DataLoader[Any]:
        return DataLoader(data(), 4, worker_init_fn=begin, multiprocessing_context=context, **SETTINGS["one"])

    for most in (None, 2):
        expected = passes(own(), iter, most)
        loader = own()
        stand_in = StandIn(Changes({"loader": {"persistent_workers": True}}).arguments(loader), print)
        read = functools.partial(stand_in.read, goes_on=True)
        assert passes(loader, read, most) == expected
        assert (stand_in.why_restarted is None) is persists


@pytest.mark.parametrize("sampler", ["shuffle", "own generator", "own batches"])
@pytest.mark.parametrize(
    ("own", "changed"), [({}, {"num_workers": 2, "persistent_workers": True}), ({"num_workers": 1}, {})]
)
def test_so_are_those_of_a_loader_of_ones_own(own: dict[str, Any], changed: dict[str, Any], sampler: str) -> None:
    """Without a recorder: the arguments of ``dataloader`` say how."""
    config = TrainConfig().replace(**{"batch_size": 4, "num_workers": 1, "persistent_workers": True, **changed})
    expected = passes(DataLoader(Rows(), **SAMPLERS[sampler](), **own), iter, None)
    assert passes(Tuned(config).dataloader(Rows(), **SAMPLERS[sampler](), **own), iter, None) == expected


def test_workers_see_changes_to_the_data_between_epochs() -> None:
    """Where only the tuned ones persist: those of the user's own loader would keep their copy."""
    config = TrainConfig(batch_size=4, num_workers=1, persistent_workers=True)
    for own, expected in ({}, [1, 2, 2]), ({"num_workers": 1, "persistent_workers": True}, [1, 1, 1]):
        data = Rows()
        data.first = 1
        loader = Tuned(config).dataloader(data, **own)
        found, workers = [], []
        for data.first in (1, 2, 2):
            found.append(int(next(iter([batch[0] for batch in loader]))))
            workers.append(loader._iterator)
        assert found == expected
        assert workers[1] is workers[2]  # they persist while nothing changes


def test_a_loader_that_has_been_read_can_be_copied() -> None:
    """As frameworks do, and yields the same."""
    loader = Tuned(TrainConfig(batch_size=4, num_workers=1)).dataloader(Rows())
    first = list(map(str, loader))
    assert list(map(str, copy.deepcopy(loader))) == first


@pytest.mark.parametrize("sampler", [Shuffled, Drawn])
def test_a_sampler_that_draws_from_batch_to_batch_is_named(sampler: type[Shuffled]) -> None:
    """Workers need its indices ahead of training; one that draws all at once is no matter."""
    loader: DataLoader[Any] = DataLoader(Rows(), batch_sampler=sampler())
    assert said_of(loader, SETTINGS["one"]) == ([INDICES_DRAW] if sampler is Drawn else [])


@pytest.mark.parametrize("changes", [False, True])
def test_a_sampler_that_training_changes_is_named_once_where_it_is_drawn_ahead(*, changes: bool) -> None:
    """A look may have missed it; what the sampler changes itself as it draws is no matter."""
    sampler = Hardest()
    said: list[str] = []
    loader: DataLoader[Any] = DataLoader(Rows(), batch_sampler=sampler)
    read = standing_in(SETTINGS["persistent"], said.append)
    for _ in range(2):
        for _ in read(loader):
            if changes:
                sampler.losses += 1
    assert said == ([INDICES_FED_BACK] if changes else [])


@pytest.mark.parametrize(
    ("data", "own", "setting", "said"),
    [
        pytest.param(Rows, 0, "one", None, id="draws nothing"),
        pytest.param(Noisy, 0, "one", READS_DRAW.format(f"{TORCHS}, {PYTHONS}, {NUMPYS}"), id="from three generators"),
        pytest.param(Augmented, 0, "one", READS_DRAW.format(PYTHONS), id="from one"),
        pytest.param(Augmented, 1, "persistent", WORKERS_DRAW, id="other workers"),
        pytest.param(Augmented, 1, "one", None, id="the same workers"),
    ],
)
def test_reading_that_draws_is_named_once_where_other_processes_read(
    data: type[Rows], own: int, setting: str, said: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the first worker, in the first epoch."""
    read = standing_in(SETTINGS[setting], lambda sentence: print(sentence, flush=True))
    loader: DataLoader[Any] = DataLoader(data(), batch_size=4, num_workers=own)
    for _ in range(2):
        list(read(loader))
    assert capfd.readouterr().out == (f"{said}\n" if said else "")
