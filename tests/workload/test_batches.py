"""Batches of any structure reach the device, and are grouped into optimizer steps, as `Tuned` offers it."""

from __future__ import annotations

import collections
import dataclasses
import types
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autotune.knobs.config import TrainConfig
from autotune.torch_settings.naming import tensors_in
from autotune.training.tuned import Tuned

META = torch.device("meta")


def tuned(**knobs: Any) -> Tuned:
    """The default config with some knobs changed, on the CPU."""
    return Tuned(TrainConfig(**knobs))


class Sentence(NamedTuple):
    """A batch as a named tuple."""

    words: torch.Tensor
    length: int


@dataclasses.dataclass(frozen=True)
class Scan:
    """A batch as a dataclass."""

    image: torch.Tensor
    name: str


class Encoding(collections.UserDict[str, torch.Tensor]):
    """A batch that is a mapping and knows how to move, as a tokenizer's is; its `.to` takes no non_blocking."""

    def to(self, device: torch.device) -> Encoding:
        """On the device."""
        return Encoding({key: value.to(device) for key, value in self.data.items()})


class Graph:
    """A batch of a kind of its own, whose `.to` takes non_blocking."""

    def __init__(self) -> None:
        self.moves: list[tuple[Any, bool]] = []

    def to(self, device: torch.device, *, non_blocking: bool = False) -> Graph:
        """Notes how it was called."""
        self.moves.append((device, non_blocking))
        return self


class Stream(IterableDataset[float]):
    """An iterable dataset, each worker of which yields all of it; it may tell a length."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[float]:
        return iter([float(number) for number in range(self.samples)])


class SizedStream(Stream):
    """An iterable dataset that tells its length."""

    def __len__(self) -> int:
        return self.samples


def on_meta(batch: Any, **knobs: Any) -> Any:
    """A batch moved to the meta device, which takes the place of a GPU."""
    setting = tuned(**knobs)
    setting.device = META
    return setting.to_device(batch)


def test_nested_batches_are_moved_and_keep_their_types() -> None:
    """Dict, list, tuple, named tuple, dataclass and mappings of other kinds; what is no tensor stays."""
    ones = torch.ones(2)
    batch = {
        "list": [ones, 3],
        "tuple": (ones, "text"),
        "named": Sentence(ones, 7),
        "dataclass": Scan(ones, "scan"),
        "ordered": collections.OrderedDict(x=ones),
        "default": collections.defaultdict(list, x=ones),
        "frozen": types.MappingProxyType({"x": ones}),
        "none": None,
    }
    moved = on_meta(batch)
    assert {key: type(value) for key, value in moved.items()} == {key: type(value) for key, value in batch.items()}
    assert moved["list"][0].device == moved["tuple"][0].device == moved["named"].words.device == META
    assert moved["dataclass"].image.device == moved["ordered"]["x"].device == moved["default"]["x"].device == META
    assert moved["frozen"]["x"].device == META
    assert (moved["list"][1], moved["tuple"][1], moved["named"].length) == (3, "text", 7)
    assert moved["dataclass"].name == "scan"
    assert moved["default"]["missing"] == []
    assert moved["none"] is None


def test_moving_leaves_the_batch_itself_alone() -> None:
    """A batch that the loader, or its user, keeps is not changed behind their back."""
    batch = {"x": torch.ones(2), "scan": Scan(torch.ones(2), "scan")}
    on_meta(batch)
    assert batch["x"].device == batch["scan"].image.device == torch.device("cpu")  # type: ignore[union-attr]


class Edge(NamedTuple):
    """Has a field whose name is that of a method of tensors."""

    source: torch.Tensor
    to: torch.Tensor


def test_packed_sequences_move_as_they_can() -> None:
    """Their batch sizes must stay on the CPU, though a packed sequence is a tuple of tensors."""
    packed = on_meta(pack_sequence([torch.ones(3), torch.ones(2)]))
    assert isinstance(packed, PackedSequence)
    assert (packed.data.device, packed.batch_sizes.device) == (META, torch.device("cpu"))


@pytest.mark.parametrize("non_blocking", [False, True])
def test_batches_that_know_how_to_move_are_asked(non_blocking: bool) -> None:
    """Their own `.to` is called, with non_blocking where it takes that."""
    knobs = {"pin_memory": non_blocking, "non_blocking": non_blocking}
    encoding = on_meta(Encoding({"input_ids": torch.ones(2)}), **knobs)
    assert isinstance(encoding, Encoding)
    assert encoding["input_ids"].device == META
    assert on_meta(Graph(), **knobs).moves == [(META, non_blocking)]


@pytest.mark.parametrize(("batches", "expected"), [(6, [2, 2, 2]), (5, [2, 2, 1]), (1, [1]), (0, [])])
def test_groups_of_a_sized_loader(batches: int, expected: list[int]) -> None:
    """The last group is as long as what is left, and `len()` says so beforehand."""
    groups = tuned(accumulation_steps=2).accumulate([torch.ones(1)] * batches)
    assert [(len(group), len(list(group))) for group in groups] == [(size, size) for size in expected]


@pytest.mark.parametrize(("batches", "expected"), [(6, [2, 2, 2]), (5, [2, 2, 1]), (0, [])])
def test_groups_of_a_loader_without_length(batches: int, expected: list[int]) -> None:
    """There is no empty group at the end; what comes in the last one cannot be known before."""
    groups = tuned(accumulation_steps=2).accumulate(iter([torch.ones(1)] * batches))
    assert [len(list(group)) for group in groups] == expected


def test_no_batch_is_lost_where_workers_end_with_incomplete_ones() -> None:
    """An iterable dataset may yield more batches than its length tells: all are trained on."""
    loader = DataLoader(SizedStream(8), batch_size=4, num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the length, which is the subject
        drawn = [batch for group in tuned(accumulation_steps=2).accumulate(loader) for batch in group]
    assert len(loader) == 2
    assert len(drawn) == 4


def test_what_the_caller_leaves_is_skipped() -> None:
    """A group that was broken off does not shift the next; what was skipped was not moved."""
    moved: list[float] = []
    setting = tuned(accumulation_steps=3)
    setting.to_device = lambda batch: moved.append(batch.item()) or batch  # type: ignore[method-assign,func-returns-value]
    firsts = [next(iter(group)).item() for group in setting.accumulate([torch.tensor(float(n)) for n in range(9)])]
    assert firsts == moved == [0.0, 3.0, 6.0]


def test_batches_are_drawn_and_moved_one_at_a_time() -> None:
    """Only one batch of a group is on the device unless the caller keeps them: that is what accumulation is for."""
    drawn: list[int] = []
    moved: list[int] = []

    def batches() -> Iterator[int]:
        for number in range(6):
            drawn.append(number)
            yield number

    setting = tuned(accumulation_steps=3)
    setting.to_device = lambda batch: moved.append(batch) or batch  # type: ignore[method-assign,func-returns-value]
    groups = setting.accumulate(batches())
    assert (drawn, moved) == ([], [])
    group = iter(next(groups))
    assert moved == []
    next(group)
    next(group)
    assert (drawn, moved) == ([0, 1], [0, 1])


def test_a_group_can_be_iterated_once() -> None:
    """A second time there is nothing left, rather than the next group's batches."""
    group = next(tuned(accumulation_steps=2).accumulate([torch.ones(1)] * 4))
    assert [len(list(group)) for _ in range(2)] == [2, 0]


def test_four_micro_batches_have_the_gradient_of_one_batch() -> None:
    """8 × 4 with the loss divided by the group's length is 32 at once, for a mean loss."""
    gradients = []
    features = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    for batch_size, steps in ((32, 1), (8, 4)):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        setting = tuned(batch_size=batch_size, accumulation_steps=steps)
        (group,) = setting.accumulate(setting.dataloader(TensorDataset(features)))
        for (batch,) in group:
            (model(batch).square().mean() / len(group)).backward()
        gradients.append(model.weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_all_tensors_of_a_batch_are_found_in_order() -> None:
    """In every structure that is moved; what is no tensor is passed over."""
    one, two, three, four = (torch.full((1,), float(number)) for number in range(4))
    batch = {"a": [one, "text"], "b": (Sentence(two, 7), Scan(three, "scan")), "c": types.MappingProxyType({"d": four})}
    found = list(tensors_in(batch))
    assert len(found) == 4
    assert all(tensor is expected for tensor, expected in zip(found, (one, two, three, four), strict=True))
