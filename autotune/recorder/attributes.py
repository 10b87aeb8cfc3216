"""What workers have a copy of since they were started, and whether the script has changed it by now."""

from __future__ import annotations

import contextlib
import itertools
import types
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

MOST_ITEMS, MOST_BYTES = 1_000_000, 2**26
"""Of a list and an array, to be looked through at each epoch: either takes less than a tenth of a second."""
MOST_PARTS = 100_000
"""Objects within a data set, to be looked through at each epoch: they take a few tenths of a second."""
GROWN_SHARE = 0.25
"""Of the samples that were drawn; some may have been there already. Chosen."""
_PLAIN = (int, float, str, bytes)
_ATOMS = {int, float, str, bytes, bool, complex, type(None)}
_ITEMS: tuple[tuple[Any, Any], ...] = (
    (dict, dict.values), (list, list.__iter__), (tuple, tuple.__iter__), (set, set.__iter__), (deque, deque.__iter__),
)  # fmt: skip
_HOLDING = tuple(kind for kind, _ in _ITEMS)
_CLOSED = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_FOREIGN = {"logging", "threading", "multiprocessing", "weakref"}
"""Packages whose objects are no data, and hold the whole process."""


class Attributes:
    """What a data set holds, at any depth, as it is at this moment.

    Lists and arrays above the limits, and objects without attributes, count as changed only where another one takes
    their place.

    Args:
        things: The data set, and what else workers have a copy of.
    """

    def __init__(self, *things: Any) -> None:
        self._found = [_kept(part) for part in held_by(*things)]

    def are_as(self, former: Attributes) -> bool:
        """Whether they are as they were."""
        now, then = self._found, former._found
        return len(now) == len(then) and all(map(is_same, now, then))


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


def held_by(*holders: Any) -> Iterator[Any]:
    """The holders and everything that they hold, in the same order each time; numbers and texts are left out.

    A part is an attribute, or an item of a list, a tuple, a set or a dictionary.
    """
    seen: dict[int, Any] = {}
    waiting = list(holders)[::-1]
    while waiting and len(seen) < MOST_PARTS:
        part = waiting.pop()
        if id(part) not in seen and type(part) not in _ATOMS:
            seen[id(part)] = part
            yield part
            with contextlib.suppress(Exception):  # a class of the script's may raise where it is asked
                waiting += reversed(_parts(part))


def _parts(holder: Any) -> list[Any]:
    """The attributes and items that may change by themselves."""
    kind = type(holder)
    if issubclass(kind, (*_CLOSED, torch.Tensor)) or kind.__module__.partition(".")[0] in _FOREIGN:
        return []
    items = _items(holder)
    return [*_attributes(holder).values(), *([] if _are_plain(items) else items)]


def _items(holder: Any) -> list[Any]:
    """The items of a list, a tuple, a set or a dictionary, by Python's own methods; none above the limit."""
    for kind, items in _ITEMS:
        if issubclass(type(holder), kind):
            return list(items(holder)) if kind.__len__(holder) <= MOST_ITEMS else []
    return []


def _attributes(holder: Any) -> dict[str, Any]:
    return getattr(holder, "__dict__", None) or {}


def _are_plain(items: list[Any]) -> bool:
    """Whether they are numbers and texts, or tuples of such, as the paths and classes of a million images."""
    kinds = set(map(type, items))
    return kinds <= _ATOMS or (kinds == {tuple} and set(map(type, itertools.chain.from_iterable(items))) <= _ATOMS)


def _kept(value: Any) -> Any:
    """A record by which a later change shows; it holds the value, so that nothing else gets its id."""
    with contextlib.suppress(Exception):  # whatever a class of the script's makes of being asked
        kind = type(value)
        if isinstance(value, torch.Tensor):  # workers see what is shared
            is_shared = value.is_shared()  # type: ignore[no-untyped-call]
            return value, None if is_shared else value._version
        if issubclass(kind, _CLOSED):
            return value
        if issubclass(kind, _HOLDING) or _attributes(value):
            items, own = _items(value), _attributes(value)
            keys = tuple(dict.keys(value)) if issubclass(kind, dict) and items else ()
            marks = items if _are_plain(items) else map(_mark, items)
            return kind if kind in _HOLDING else value, keys, *marks, None, *own, *map(_mark, own.values())
        array = memoryview(value)
        if array.nbytes <= MOST_BYTES:
            return value, zlib.crc32(array.cast("B"))
    return value


def _mark(part: Any) -> Any:
    """The part itself; None for a list and the rest, each of which has a record of its own."""
    return None if type(part) in _HOLDING else part
