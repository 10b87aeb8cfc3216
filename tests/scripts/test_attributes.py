"""Workers that persist have a copy of the data set; what the script changes in its own is seen."""

from __future__ import annotations

import functools
import random
from argparse import Namespace
from collections import Counter, deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from autotune.recorder.attributes import Attributes, CopiedReading, OwnDraws, Watch, count_items, held_by


class Rows(Dataset[int]):
    """With attributes of all kinds."""

    def __init__(self) -> None:
        self.epoch = 1000
        self.listed: list[Any] = [np.zeros(2), 1]
        self.named: dict[str, Any] = {"one": np.zeros(2)}
        self.array, self.tensor, self.shared = np.zeros((2, 2)), torch.zeros(2), torch.zeros(2).share_memory_()
        steps = SimpleNamespace(steps=[SimpleNamespace(chance=0.1)])
        self.deep: dict[str, Any] = {"levels": [0, [1, 2]], "transform": steps, "arrays": ([1], np.zeros(2))}
        self.counts, self.queue = Counter(["one"]), deque([0])
        self.transform: Callable[[int], int] = abs
        self.itself = self
        self.difficulty = 0

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index + self.difficulty


def _epoch(rows: Rows) -> None:
    rows.epoch = int("1001")


def _transform(rows: Rows) -> None:
    rows.transform = lambda value: value


def _new_name(rows: Rows) -> None:
    rows.sampled = [1]  # type: ignore[attr-defined]


def _shuffled(rows: Rows) -> None:
    rows.listed.reverse()


def _entry(rows: Rows) -> None:
    rows.named["one"] = np.zeros(2)


def _array(rows: Rows) -> None:
    rows.array[1, 1] = 1


def _tensor(rows: Rows) -> None:
    rows.tensor.add_(1)


def _deep_item(rows: Rows) -> None:
    rows.deep["levels"][1][0] = 5


def _deep_attribute(rows: Rows) -> None:
    rows.deep["transform"].steps[0].chance = 0.5


def _deep_array(rows: Rows) -> None:
    rows.deep["arrays"][1][1] = 1


def _subclass(rows: Rows) -> None:
    rows.counts["one"] += 1


def _queue(rows: Rows) -> None:
    rows.queue.append(1)


CHANGES = [_epoch, _transform, _new_name, _shuffled, _entry, _array, _tensor]
DEEP_CHANGES = [_deep_item, _deep_attribute, _deep_array, _subclass, _queue]


@pytest.mark.parametrize("change", [*CHANGES, *DEEP_CHANGES])
@pytest.mark.parametrize(
    "within",
    [lambda rows: rows, lambda rows: Subset(rows, [0]), lambda rows: ConcatDataset([Subset(rows, [0]), Rows()])],
    ids=["itself", "subset", "one of two"],
)
def test_a_change_is_seen(change: Callable[[Rows], None], within: Callable[[Rows], Any]) -> None:
    """An attribute may change, or any part within it; also where the data set is wrapped."""
    rows = Rows()
    whole = within(rows)
    former, watch = Attributes(whole), Watch(whole)
    assert Attributes(whole).are_as(former)
    assert not watch.has_changed
    change(rows)
    assert not Attributes(whole).are_as(former)
    assert watch.has_changed


def test_what_is_set_to_the_same_value_or_shared_with_workers_is_no_change() -> None:
    """A number of the same value may be another object."""
    rows = Rows()
    former = Attributes(rows)
    rows.epoch, rows.listed = int("1000"), list(rows.listed)
    globals()["difficulty"] = 1  # which has the name of an attribute
    rows.shared.add_(1)
    assert Attributes(rows).are_as(former)


class Warmed:
    """A transform that counts epochs; so do its class, and a list beside it."""

    __slots__ = ("epoch",)
    epochs = 0

    def __init__(self) -> None:
        self.epoch = 0

    def __call__(self, value: int, _: object = None) -> int:
        """The value itself."""
        return value + self.epoch + LEVELS[0] + _noise()

    def count(self) -> None:
        """Another epoch."""
        self.epoch += 1


class Strict:
    """Options in a slot."""

    __slots__ = ("noise",)

    def __init__(self) -> None:
        self.noise = 0.0


LEVELS = [0]
OPTIONS, STRICT, NAMED = Namespace(noise=0.0), Strict(), {"options": {"noise": 0.0}}
settings = ModuleType("settings")
settings.NOISE = 0.0  # type: ignore[attr-defined]


def _noise() -> int:
    return int(OPTIONS.noise + STRICT.noise + NAMED["options"]["noise"] + settings.NOISE)  # type: ignore[attr-defined]


class Trainer:
    """Collates, and trains."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1)

    def collate(self, samples: list[int]) -> list[int]:
        """As they are."""
        return samples


def _held(transform: Any) -> Rows:
    rows = Rows()
    rows.transform = transform
    return rows


def _counting() -> tuple[Callable[[int], int], Callable[[], None]]:
    epoch = 0

    def read(value: int) -> int:
        return value + epoch

    def count() -> None:
        nonlocal epoch
        epoch += 1

    return read, count


def _level() -> None:
    LEVELS[0] += 1


def _epochs() -> None:
    Warmed.epochs += 1


READ, COUNT = _counting()
WARMED, TABLE, PLAIN, LOADED = Warmed(), torch.zeros(4), np.zeros((4, 4)), [*range(1000)]
DATA = TensorDataset(TABLE)


@pytest.mark.parametrize(
    ("transform", "change"),
    [
        (WARMED, WARMED.count),
        (WARMED.__call__, WARMED.count),
        (functools.partial(max, WARMED), WARMED.count),
        ({"first": WARMED.__call__}, WARMED.count),
        (READ, COUNT),
        (WARMED, _epochs),
        (WARMED, _level),
        (WARMED, lambda: setattr(OPTIONS, "noise", 1.0)),
        (WARMED, lambda: setattr(STRICT, "noise", 1.0)),
        (WARMED, lambda: NAMED["options"].update(noise=1.0)),
        (WARMED, lambda: setattr(settings, "NOISE", 1.0)),
        (LOADED, lambda: LOADED.sort(reverse=True)),
        (DATA, lambda: TABLE.data.fill_(1)),
        (PLAIN[:, ::2], lambda: PLAIN.fill(1)),
    ],
    ids=[
        "slot", "bound method", "partial", "method in a dictionary", "closure", "attribute of a class",
        "list that a method reads", "options that a function reads", "slots that a function reads",
        "dictionary that a function reads", "module that a function reads", "order of a long list",
        "data of a tensor", "array with gaps",
    ],
)  # fmt: skip
def test_a_change_is_seen_in_whatever_a_transform_is_made_of(transform: Any, change: Callable[[], Any]) -> None:
    """Workers hold a copy of all of it."""
    rows = Subset(_held(transform), [0])
    former, watch = Attributes(rows), Watch(rows)
    assert Attributes(rows).are_as(former)
    assert not watch.has_changed
    change()
    assert not Attributes(rows).are_as(former)
    assert watch.has_changed is (transform is not DATA)  # which takes longer to see


def test_a_trainer_whose_method_collates_is_not_looked_into() -> None:
    """It is another one after each step."""
    trainer, rows = Trainer(), Rows()
    collate = trainer.collate
    former = Attributes(rows, collate)
    with torch.no_grad():
        trainer.model.weight.add_(1)
    assert Attributes(rows, collate).are_as(former)


def test_a_value_that_is_set_to_the_same_again_is_no_change_at_a_batch() -> None:
    """A number of the same value may be another object, and is remembered."""
    rows = Rows()
    watch = Watch(rows)
    for _ in range(2):
        rows.epoch = int("1000")
        assert not watch.has_changed
    rows.epoch = int("1001")
    assert watch.has_changed


OWN: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "Python's": (random.Random(0), random.Random.random),
    "NumPy's": (np.random.default_rng(0), np.random.Generator.normal),
    "NumPy's former": (np.random.RandomState(0), np.random.RandomState.normal),
    "torch's": (torch.Generator(), lambda generator: torch.rand((), generator=generator)),
}


@pytest.mark.parametrize("own", OWN)
def test_draws_from_a_generator_of_the_data_sets_own_are_seen(own: str) -> None:
    """One that only made the data, before it is read, repeats nothing."""
    generator, draw = OWN[own]
    draws = OwnDraws(held_by(SimpleNamespace(transform=[SimpleNamespace(generator=generator)])))
    assert not draws.are_seen
    draw(generator)
    assert draws.are_seen


def test_draws_from_the_generators_that_torch_seeds_in_workers_are_not_own() -> None:
    """A data set may refer to them too."""
    draws = OwnDraws(
        held_by(SimpleNamespace(choose=random.choice, other=np.random.mtrand._rand, torchs=torch.default_generator))
    )
    random.choice("ab")
    np.random.mtrand._rand.normal()
    torch.rand(())
    assert not draws.are_seen


class Unloaded(Dataset[int]):
    """A data set that loads itself on access, and fails."""

    @property
    def __dict__(self) -> Any:
        raise RuntimeError("not loaded yet")


class Strange(dict[str, Any]):
    """What a data set may hold: its class hides its module, its length and its own class."""

    __module__ = None  # type: ignore[assignment]

    @property
    def __class__(self) -> Any:
        raise RuntimeError("not loaded yet")

    def __len__(self) -> int:
        raise RuntimeError("not loaded yet")


def test_code_of_a_strange_part_is_not_run() -> None:
    """Only Python's own methods are called."""
    strange = Strange()
    rows = _held(strange)
    assert not OwnDraws(held_by(rows)).are_seen
    count, watch = count_items(rows), Watch(rows)
    strange["one"] = 1
    assert watch.has_changed
    assert count_items(rows) == count + 1


def test_a_data_set_that_shows_no_attributes_holds_no_items() -> None:
    """It may stand for one that is not loaded."""
    assert count_items(Unloaded()) == 0
    assert not Watch(Unloaded()).has_changed


TRAINED, FROZEN, PROGRESS = nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False), SimpleNamespace(count=0)
STATE = SimpleNamespace(model=TRAINED, other=nn.Linear(1, 1))


class Evaluates(Dataset[int]):
    """Uses a model elsewhere than in reading."""

    def __init__(self) -> None:
        self.model, self.count = TRAINED, PROGRESS.count

    def __getitem__(self, index: int) -> int:
        return index + self.count

    def evaluate(self) -> Any:
        """Not called while reading."""
        PROGRESS.count += 1
        return self.model(TRAINED.weight)


class Reads(Evaluates):
    """The same, by a method that reading calls."""

    def __getitem__(self, index: int) -> int:
        return self.evaluate() is not None


class ByProperty(Evaluates):
    """The same, by a property."""

    def __getitem__(self, index: int) -> int:
        return self.score

    @property
    def score(self) -> int:
        """Of the model."""
        return int(TRAINED.weight.sum() + PROGRESS.count)


class Transform:
    """Is called by another name."""

    def apply(self, value: int) -> int:
        """By the model."""
        return int(value + TRAINED.weight.sum() + PROGRESS.count)


class Transformed(Dataset[int]):
    """Calls a method of another class."""

    def __init__(self) -> None:
        self.transform = Transform()

    def __getitem__(self, index: int) -> int:
        return self.transform.apply(index)


class Scaled(nn.Module):
    """Torch calls its method."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """By the model."""
        return torch.mul(value, TRAINED.weight * PROGRESS.count)


class Scores(Evaluates):
    """Reads what does not train, but may be an average of what does."""

    def __init__(self) -> None:
        self.teacher = FROZEN

    def __getitem__(self, index: int) -> int:
        return self.teacher is not None and PROGRESS.count > 0


class ByState(Dataset[int]):
    """Reads one of a few objects."""

    def __getitem__(self, index: int) -> int:
        return STATE.model is not None and PROGRESS.count > 0


CHANGES_IT = "reading the data uses a Linear that training changes"


@pytest.mark.parametrize(
    ("holder", "why"),
    [
        (Evaluates(), None),
        (Reads(), CHANGES_IT),
        (ByProperty(), CHANGES_IT),
        (Transformed(), CHANGES_IT),
        (Scaled(), CHANGES_IT),
        (Scores(), "reading the data uses a Linear, which may change while training runs"),
        (ByState(), CHANGES_IT),
    ],
    ids=["elsewhere", "method", "property", "other class", "forward", "frozen", "state"],
)
def test_what_only_other_methods_use_is_not_used_by_reading(holder: Any, why: str | None) -> None:
    """Constructors and methods that evaluate run in the script's own process."""
    former, watch = Attributes(holder), Watch(holder)
    assert CopiedReading(holder, None, None).why_no_copies == why
    PROGRESS.count += 1
    assert watch.has_changed is (why is not None)
    assert Attributes(holder).are_as(former) is (why is None)


def test_a_librarys_collator_may_hold_the_model_and_a_tokenizer_notes_its_warnings() -> None:
    """It only calls a method of the model that shifts labels."""
    collators = pytest.importorskip("transformers.data.data_collator")
    tokenizers = pytest.importorskip("transformers.tokenization_utils_base")
    tokenizer = tokenizers.PreTrainedTokenizerBase.__new__(tokenizers.PreTrainedTokenizerBase)
    vars(tokenizer)["deprecation_warnings"] = {}
    collate = collators.DataCollatorForSeq2Seq(tokenizer, model=nn.Linear(1, 1))
    former, watch = Attributes(collate), Watch(collate)
    assert CopiedReading([1], collate, None).why_no_copies is None
    vars(tokenizer)["deprecation_warnings"]["pad"] = True
    with torch.no_grad():
        collate.model.weight.add_(1)
    assert not watch.has_changed
    assert Attributes(collate).are_as(former)
    collate.max_length = 5
    assert watch.has_changed


class Asked:
    """Notes what it is asked for."""

    asked: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(name)


def test_a_watch_asks_no_script_and_leaves_shared_tensors_and_long_queues() -> None:
    """Workers see writes to shared memory; a dictionary walks past all that was removed at its front."""
    rows, asked = Rows(), Asked()
    rows.named |= dict.fromkeys(map(str, range(1000)))
    rows.transform = asked  # type: ignore[assignment]
    watch = Watch(rows)
    assert "flat" not in asked.asked
    rows.shared.add_(1)
    rows.named["5"] = 1
    assert not watch.has_changed
    del rows.named["5"]
    assert watch.has_changed
