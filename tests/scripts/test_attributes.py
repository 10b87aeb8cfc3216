"""Workers that persist have a copy of the data set; what the script changes in its own is seen."""

from __future__ import annotations

from collections.abc import Callable
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


@pytest.mark.parametrize("change", [_epoch, _transform, _new_name, _shuffled, _entry, _array, _tensor])
@pytest.mark.parametrize(
    "within",
    [lambda rows: rows, lambda rows: Subset(rows, [0]), lambda rows: ConcatDataset([Subset(rows, [0]), Rows()])],
    ids=["itself", "subset", "one of two"],
)
def test_a_change_is_seen(change: Callable[[Rows], None], within: Callable[[Rows], Any]) -> None:
    """Of an attribute, and within a list or an array; also where the data set is wrapped."""
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
