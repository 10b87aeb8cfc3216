"""The objects that workers copied when they were started, and whether the script has changed them since."""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import pickle
import random
import sys
import types
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from .open_files import SHARED, OpenFiles

MOST_ITEMS, MOST_BYTES = 1_000_000, 2**26
"""Largest list and array that are checked at each epoch: either takes less than a tenth of a second."""
MOST_PARTS = 100_000
"""Most objects within a data set that are checked at each epoch: they take a few tenths of a second."""
GROWN_SHARE = 0.25
"""Smallest growth that counts, per drawn sample: some samples may have been there already. Not tuned."""
REPEATING = (
    "reading draws from a generator of random numbers that the data set or its collation holds: "
    "copies of it in workers would repeat each other"
)
_PLAIN = (int, float, str, bytes)
_ATOMS = {int, float, str, bytes, bool, complex, type(None)}
_ITEMS: tuple[tuple[Any, Any], ...] = (
    (dict, dict.values), (list, list.__iter__), (tuple, tuple.__iter__), (set, set.__iter__), (deque, deque.__iter__),
)  # fmt: skip
_HOLDING = tuple(kind for kind, _ in _ITEMS)
_CLOSED = (types.ModuleType, types.BuiltinFunctionType)
_FOREIGN = {"logging", "threading", "multiprocessing", "weakref", "lightning", "pytorch_lightning"}
"""Packages whose objects hold no data, but refer to the whole process: a LightningDataModule refers to its Trainer."""
_LIBRARIES = sys.stdlib_module_names | {"torch", "autotune"}


class Attributes:
    """A snapshot of a data set's contents, at any depth.

    It includes attributes of the script's classes, and what functions refer to outside themselves. Lists and arrays
    above the limits, and objects without attributes, count as changed only if another object takes their place.

    Args:
        holders: The data set, and other objects that workers have a copy of.
    """

    def __init__(self, *holders: Any) -> None:
        self._records = [_kept(part) for part in held_by(*holders)]

    def are_as(self, former: Attributes) -> bool:
        """Whether nothing has changed since another snapshot."""
        now, then = self._records, former._records
        return len(now) == len(then) and all(map(is_same, now, then))


def is_same(value: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal numbers, texts, or tuples of such.

    Comparing other objects would run code of their class.
    """
    if value is other:
        return True
    if type(value) is not type(other):
        return False
    if isinstance(value, tuple):
        return len(value) == len(other) and all(map(is_same, value, other))
    return isinstance(value, _PLAIN) and bool(value == other)


def nested(*holders: Any) -> list[Any]:
    """The objects, and the data sets that they are made of, outer ones first."""
    parts_by_id: dict[int, Any] = {}
    waiting = list(holders)
    for thing in waiting:  # grows as it goes
        if id(thing) in parts_by_id:
            continue
        parts_by_id[id(thing)] = thing
        for value in _values_of(thing):
            parts = value if type(value) in {list, tuple} else (value,)
            if parts and issubclass(type(parts[0]), Dataset):
                waiting.extend(parts)
    return list(parts_by_id.values())


def _values_of(holder: Any) -> list[Any]:
    """The values of an object's attributes; none if it does not show them."""
    with contextlib.suppress(Exception):  # a class of the script's may raise on access
        return list(getattr(holder, "__dict__", {}).values())
    return []


class Growth:
    """Detects data sets that keep what is read from them in this process: they grow with each sample."""

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
        """Whether a loader's data set has grown by more than a few large files opened meanwhile would explain."""
        grown = count_items(loader.dataset) - self._before.get(id(loader), 0)
        return not loader.num_workers and grown > 0 and grown >= GROWN_SHARE * self._drawn[id(loader)]


def count_items(dataset: Any) -> int:
    """Counts the items in lists, dictionaries and sets of a data set, and of the data sets that it is made of.

    The count grows with the samples read if the data set keeps them. None in a list does not count.
    """
    held = [value for part in nested(dataset) for value in _values_of(part)]
    lists = [value for value in held if type(value) is list and len(value) <= MOST_ITEMS]
    others = [kind.__len__(value) for value in held for kind in (dict, set) if issubclass(type(value), kind)]
    return sum(others) + sum(item is not None for value in lists for item in list(value))


def held_by(*holders: Any) -> Iterator[Any]:
    """Yields the holders and everything that they hold, in a fixed order; numbers and texts are left out.

    A part is an attribute (also of the script's classes), an item of a list, tuple, set or dictionary, or a value that
    a function refers to outside itself.
    """
    seen: dict[int, Any] = {}
    waiting = list(holders)[::-1]
    while waiting and len(seen) < MOST_PARTS:
        part = waiting.pop()
        if id(part) not in seen and type(part) not in _ATOMS:
            seen[id(part)] = part
            yield part
            with contextlib.suppress(Exception):  # a class of the script's may raise on access
                waiting += reversed(_parts(part))


class OwnDraws:
    """Detects whether reading draws from generators of random numbers that a data set or its collation holds.

    Torch seeds the global generators of torch, Python and NumPy in each worker, but not these.

    Args:
        holders: The data set, and what collates.
    """

    def __init__(self, *holders: Any) -> None:
        self._states = [(part, _state_of(part)) for part in held_by(*holders) if _is_own_generator(part)]

    @property
    def are_seen(self) -> bool:
        """Whether any of them has been drawn from."""
        return any(_state_of(part) != state for part, state in self._states)


class CopiedReading:
    """Detects, while this process reads a data set, whether copies of it in workers would read the same.

    Args:
        dataset: The data set.
        collate: What collates.
        begin_worker: The loader's ``worker_init_fn``, which might open files again.
    """

    def __init__(self, dataset: Any, collate: Any, begin_worker: Any) -> None:
        self._draws = OwnDraws(dataset, collate)
        self._files = OpenFiles() if begin_worker is None else None

    @property
    def why_no_copies(self) -> str | None:
        """Why copies would not; None if nothing is seen."""
        if self._files is not None and self._files.are_read:
            return SHARED
        return REPEATING if self._draws.are_seen else None


def _is_own_generator(part: Any) -> bool:
    of_numpy = str(type(part).__module__).startswith("numpy.random.")
    seeded = torch.default_generator, _global_of("random", "_inst"), _global_of("numpy.random.mtrand", "_rand")
    is_generator = of_numpy or issubclass(type(part), (random.Random, torch.Generator))
    return is_generator and not any(part is one for one in seeded)


def _global_of(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _state_of(generator: Any) -> bytes | None:
    """The state of a generator; None if it has none to show."""
    with contextlib.suppress(Exception):
        is_torch = isinstance(generator, torch.Generator)
        return generator.get_state().numpy().tobytes() if is_torch else pickle.dumps(generator)
    return None


def _parts(holder: Any) -> list[Any]:
    """The attributes and items that may change without their holder."""
    kind = type(holder)
    if _is_closed(kind) or issubclass(kind, torch.Tensor):
        return []
    items = _items(holder)
    classes = [one for one in kind.__mro__ if not _is_of_library(one)]
    return [*_attributes(holder).values(), *([] if _are_plain(items) else items), *classes]


def _is_closed(kind: type) -> bool:
    """Whether objects of a type are not looked into."""
    return issubclass(kind, _CLOSED) or str(kind.__module__).partition(".")[0] in _FOREIGN


def _items(holder: Any) -> list[Any]:
    """The items of a list, a tuple, a set or a dictionary, by Python's own methods; none above the limit."""
    for kind, items in _ITEMS:
        if issubclass(type(holder), kind):
            return list(items(holder)) if kind.__len__(holder) <= MOST_ITEMS else []
    return []


def _attributes(holder: Any) -> dict[str, Any]:
    """The named parts of an object, a class, or a function."""
    kind = type(holder)
    if kind is types.FunctionType:
        return _around(holder)
    if kind is types.MethodType:
        return {} if _trains(holder.__self__) else {"self": holder.__self__, "function": holder.__func__}
    if issubclass(kind, type):
        own = {} if _is_of_library(holder) else vars(holder)
        return {name: one for name, one in own.items() if name[:2] != "__" or type(one) is types.FunctionType}
    names = (name for one in kind.__mro__ for name in _slots(one) if hasattr(holder, name))
    own = {**(getattr(holder, "__dict__", None) or {}), **{name: getattr(holder, name) for name in names}}
    if issubclass(kind, functools.partial):
        own |= {"function": holder.func, "arguments": holder.args, "keywords": holder.keywords}
    return own


def _around(function: types.FunctionType) -> dict[str, Any]:
    """The values outside a function that it uses; only plain values and lists of the globals: others may train."""
    around = dict(enumerate(function.__closure__ or ()))
    held: dict[str, Any] = {f"cell {place}": cell.cell_contents for place, cell in around.items()}
    held |= {"defaults": function.__defaults__, "keywords": function.__kwdefaults__}
    if not _is_of_library(function):
        values = {name: function.__globals__.get(name) for name in _globals_of(function.__code__)}
        held |= {name: one for name, one in values.items() if type(one) in _ATOMS or type(one) in _HOLDING}
    return held


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals that a function, or a function within it, reads."""
    own = [one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"]
    within = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _globals_of(part)]
    return tuple(dict.fromkeys([*own, *within]))


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    return [name for name in ((slots,) if isinstance(slots, str) else slots) if name[:2] != "__"]


def _trains(owner: Any) -> bool:
    """Whether an object is a model, or holds one or an optimizer, as trainers do: each step changes it."""
    held = (owner, *(getattr(owner, "__dict__", None) or {}).values())
    modules = (one for one in held if isinstance(one, torch.nn.Module))
    return any(isinstance(one, torch.optim.Optimizer) for one in held) or any(
        weight.requires_grad for module in modules for weight in module.parameters()
    )


def _is_of_library(thing: Any) -> bool:
    """Whether a class or a function belongs to a library, not to the script."""
    return _is_library(str(thing.__module__))


@functools.cache
def _is_library(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] in _LIBRARIES or "site-packages" in file or "dist-packages" in file


def _are_plain(items: list[Any]) -> bool:
    """Whether items are numbers and texts, or tuples of such, like the paths and classes of a million images."""
    kinds = set(map(type, items))
    return kinds <= _ATOMS or (kinds == {tuple} and set(map(type, itertools.chain.from_iterable(items))) <= _ATOMS)


def _kept(value: Any) -> Any:
    """A record that shows a later change; it holds the value, so that no other object gets its id."""
    with contextlib.suppress(Exception):  # a class of the script's may raise on access
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return value, *_of_tensor(value)
        if _is_closed(kind):
            return value
        if issubclass(kind, _HOLDING) or _attributes(value):
            items, own = _items(value), _attributes(value)
            keys = tuple(dict.keys(value)) if issubclass(kind, dict) and items else ()
            marks = items if _are_plain(items) else map(_mark, items)
            return kind if kind in _HOLDING else value, keys, *marks, None, *own, *map(_mark, own.values())
        array = memoryview(value)
        if array.nbytes <= MOST_BYTES:
            return value, zlib.crc32(array.cast("B") if array.c_contiguous else array.tobytes())
    return value


def _of_tensor(tensor: torch.Tensor) -> tuple[int, ...]:
    """Values that change with a tensor; none where workers share it. Writes to ``.data`` do not raise its version."""
    if tensor.is_shared():  # type: ignore[no-untyped-call]
        return ()
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.nbytes > MOST_BYTES:
        return (tensor._version,)
    values: Any = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return tensor._version, zlib.crc32(values)


def _mark(part: Any) -> Any:
    """The part itself; None for a container, which has a record of its own."""
    return None if type(part) in _HOLDING else part
