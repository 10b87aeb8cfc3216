"""A script that may change its data set between epochs is told by its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch.utils.data import Dataset, Subset

from autotune.recorder.mutable import may_change


class Rows(Dataset[int]):
    """Set once and for all, by a method of its own."""

    def __init__(self) -> None:
        self.difficulty = 0
        self._load()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        self.last = index
        return index

    def _load(self) -> None:
        self.rows = [1, 2]


class Sampled(Rows):
    """Draws its rows anew when it is told to."""

    def sample(self) -> None:
        """New rows."""
        self.rows[0] = 3


class Appended(Rows):
    """Grows."""

    def grow(self) -> None:
        """One more row."""
        self.rows.append(3)


class WithProperty(Rows):
    """Is told its epoch by a property."""

    fraction = 1.0

    @property
    def epoch(self) -> int:
        """Of the training."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch


class Answers(dict[str, int]):
    """Has every attribute that it is asked for, or fails in its own way."""

    __getattr__ = dict.__getitem__


class Odd(Rows):
    """Holds what must not be asked."""

    answers = Answers()


def own(kind: type) -> bool:
    """Whether a class is of this file."""
    return kind.__module__ == __name__


@pytest.mark.parametrize(
    ("make", "script", "expected"),
    [
        (Rows, "for epoch in range(3):\n    train(epoch)\n    other.steps = epoch\n", False),
        (Rows, "data.difficulty = 1\nfor epoch in range(3):\n    train(epoch)\n", False),
        (Rows, "for epoch in range(3):\n    data.difficulty += 1\n    train(epoch)\n", True),
        (lambda: Subset(Rows(), [0]), "while True:\n    subset.dataset.difficulty = 1\n", True),
        (Sampled, "for epoch in range(3):\n    train(epoch)\n", True),
        (Appended, "", True),
        (WithProperty, "", True),
        (Odd, "for epoch in range(3):\n    train(epoch)\n", False),
        (Rows, "for epoch in range(3):\n    data.rows[:] = [epoch]\n", True),
        (Rows, "this is no Python", False),
        (Rows, "x = " + "-" * 20_000 + "1", False),
    ],
    ids=[
        "others are set",
        "set before",
        "set in the loop",
        "set within another",
        "has a setter",
        "grows",
        "has a property",
        "odd",
        "items are set",
        "no Python",
        "deep",
    ],
)
def test_setters_and_what_loops_set_are_found(
    make: Callable[[], Dataset[int]], script: str, expected: bool, tmp_path: Path
) -> None:
    """Not what the constructor and the reading of a sample set, nor what is set once before training."""
    file = tmp_path / "train.py"
    file.write_text(script)
    assert may_change([make()], own, [str(file)]) is expected


def test_a_librarys_methods_do_not_count() -> None:
    """Libraries have setters that few scripts call."""
    assert not may_change([Sampled()], lambda _: False, [])
