"""A script that may change its data set between epochs is told by its source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data import Dataset, Subset

from autotune.recorder.sites import may_change


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


class Nested(Rows):
    """Holds an object whose class is no data set."""

    def __init__(self) -> None:
        super().__init__()
        self.transforms = [SimpleNamespace(chance=0.0)]


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
        (Rows, "for epoch in range(3):\n    data.rows[0][epoch]['a'] = 1\n", True),
        (Nested, "for epoch in range(3):\n    data.transforms[0].chance = epoch\n", True),
        (Nested, "own = data.transforms[0]\nfor epoch in range(3):\n    own.chance = epoch\n", True),
        (Nested, "data.transforms[0].chance = 1\nfor epoch in range(3):\n    train(epoch)\n", False),
        (Rows, "for epoch in range(3):\n    random.shuffle(data.rows)\n", True),
        (Rows, "for epoch in range(3):\n    losses.append(len(data.rows))\n", False),
        (Rows, "def begin(data):\n    data.difficulty += 1\nfor epoch in range(3):\n    begin(data)\n", True),
        (Rows, "def begin(data):\n    data.difficulty += 1\nbegin(data)\n", False),
        (Rows, "class Hook:\n    def on_epoch(self, trainer):\n        trainer.data.difficulty += 1\n", True),
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
        "items of items are set",
        "within an object",
        "within an object by another name",
        "within an object before",
        "shuffled",
        "others grow",
        "set in a function",
        "set in a function before",
        "set in a hook",
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
