"""What workers have a copy of since they were started, and whether the script has changed it by now."""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

MOST_ITEMS, MOST_BYTES = 1_000_000, 2**26
"""Of a list and an array, to be looked through at each epoch: either takes less than a tenth of a second."""
GROWN_SHARE = 0.25
"""Of the samples that were drawn; some may have been there already. Chosen."""
_PLAIN = (int, float, str, bytes)


class Attributes:
    """The attributes of a data set, and of the data sets that it is made of, as they are at this moment.

    Of what is larger than is looked through, and of objects of other kinds, it is only seen that another one is there.

    Args:
        things: The data set, and what else workers have a copy of.
    """

    def __init__(self, *things: Any) -> None:
        self._found = dict(_attributes_of(list(things)))

    def are_as(self, former: Attributes) -> bool:
        """Whether they are as they were."""
        now, then = self._found, former._found
        return now.keys() == then.keys() and all(is_same(now[name], then[name]) for name in now)


def is_same(one: Any, other: Any) -> bool:
    """Whether two are one, or equal numbers, texts, or tuples of such: what else is equal only its class could say."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return isinstance(one, _PLAIN) and bool(one == other)


def nested(*things: Any) -> list[Any]:
    """These, and the data sets that they are made of; what is found on the way comes last."""
    found: dict[int, Any] = {}
    waiting = list(things)
    for thing in waiting:  # grows as it goes
        if id(thing) in found:
            continue
        found[id(thing)] = thing
        for value in list(getattr(thing, "__dict__", {}).values()):
            parts = value if type(value) in {list, tuple} else (value,)
            if parts and issubclass(type(parts[0]), Dataset):
                waiting.extend(parts)
    return list(found.values())


class Growth:
    """Whether data sets keep what is read from them, in this process: what they hold grows with each sample."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}  # of each loader, when its first batch had been drawn
        self._drawn: Counter[int] = Counter()  # samples since then

    def note(self, loader: Any, samples: int) -> None:
        """A batch was drawn."""
        if id(loader) in self._before:
            self._drawn[id(loader)] += samples
        else:
            self._before[id(loader)] = count_items(loader.dataset)

    def is_seen(self, loader: Any) -> bool:
        """Whether it has grown, by what few large files that are opened meanwhile would not make up for."""
        grown = count_items(loader.dataset) - self._before.get(id(loader), 0)
        return not loader.num_workers and grown > 0 and grown >= GROWN_SHARE * self._drawn[id(loader)]


def count_items(dataset: Any) -> int:
    """How much the lists, dictionaries and sets of a data set hold, and of the data sets that it is made of.

    More, after samples were read, where it keeps them; empty places of a list are none.
    """
    held = [value for part in nested(dataset) for value in list(getattr(part, "__dict__", {}).values())]
    lists = [value for value in held if type(value) is list and len(value) <= MOST_ITEMS]
    others = [value for value in held if issubclass(type(value), (dict, set))]
    return sum(map(len, others)) + sum(item is not None for value in lists for item in list(value))


def _attributes_of(things: list[Any]) -> Iterator[tuple[tuple[int, str], Any]]:
    for place, thing in enumerate(nested(*things)):
        for name, value in dict(getattr(thing, "__dict__", {})).items():
            yield (place, name), _kept(value)


def _kept(value: Any) -> Any:
    """What tells later whether it has been changed; it is held, so that nothing else gets its id."""
    with contextlib.suppress(Exception):  # whatever a class of the script's makes of being asked
        if isinstance(value, torch.Tensor):  # workers see what is shared
            is_shared = value.is_shared()  # type: ignore[no-untyped-call]
            return value, None if is_shared else value._version
        if type(value) in {list, dict} and len(value) <= MOST_ITEMS:
            return (*value, None, *(value.values() if isinstance(value, dict) else ()))
        array = memoryview(value)
        if array.nbytes <= MOST_BYTES:
            return value, zlib.crc32(array.cast("B"))
    return value
