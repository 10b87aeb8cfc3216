"""Workers that persist have a copy of the data set; what the script changes in its own is seen."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from autotune.recorder.attributes import Attributes


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

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return index


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
    former = Attributes(whole)
    assert Attributes(whole).are_as(former)
    change(rows)
    assert not Attributes(whole).are_as(former)


def test_what_is_set_to_the_same_value_or_shared_with_workers_is_no_change() -> None:
    """A number of the same value may be another object."""
    rows = Rows()
    former = Attributes(rows)
    rows.epoch, rows.listed = int("1000"), list(rows.listed)
    rows.shared.add_(1)
    assert Attributes(rows).are_as(former)
