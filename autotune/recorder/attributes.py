"""The objects that workers copied when they were started, and whether the script has changed them since."""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import operator
import pathlib
import pickle
import random
import sys
import types
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from .open_files import SHARED, OpenFiles

MOST_ITEMS, MOST_BYTES = 1_000_000, 2**26
"""Largest list and array that are checked at each epoch: either takes less than a tenth of a second."""
MOST_PARTS = 100_000
"""Most objects within a data set that are checked at each epoch: they take a few tenths of a second."""
MOST_WATCHED, WATCHED_ITEMS, SAMPLED_ITEMS = 500, 64, 16
"""Most values within a data set that are checked at each batch: 200 take 10 µs. Of a container that holds more than the
second number, only as many as the third are checked."""
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
_CLOSED = (types.ModuleType, types.BuiltinFunctionType, pathlib.PurePath, random.Random)
"""Kinds that are not looked into; paths and random numbers' generators note things that no reading depends on."""
_FOREIGN = {"logging", "threading", "multiprocessing", "weakref", "lightning", "pytorch_lightning", "accelerate"}
"""Packages whose objects hold no data, but refer to the whole process: a LightningDataModule refers to its Trainer."""
_ENTRIES = {
    "__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "__len__", "__getattr__", "__contains__",
    "__enter__",
}  # fmt: skip
"""Methods that reading a data set calls without their names; others count where code that reads names them."""
_COLLATORS = "transformers.data."
"""Module of collators that hold a model, but only call a method of it that shifts labels."""
_TRAINED = (torch.nn.Module, torch.optim.Optimizer)
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


class Watch:
    """Detects, at each batch, whether a data set holds something else than when it was made; in microseconds.

    It looks at the outermost parts, at some items of large lists and arrays, and at the length of large dictionaries. A
    write to ``.data`` is not seen.

    Args:
        holders: The data set, and other objects that workers have a copy of.
    """

    def __init__(self, *holders: Any) -> None:
        self._objects: list[Callable[[], Iterable[Any]]] = []  # compared by identity, which takes least
        self._numbers: list[Callable[[], Any]] = []
        self._spaces: dict[int, tuple[dict[str, Any], dict[str, None]]] = {}
        seen: dict[int, Any] = {}
        self._reach = _Reach()
        waiting, room = deque(holders), MOST_WATCHED
        while waiting and room > 0:
            part = waiting.popleft()
            if id(part) in seen or type(part) in _ATOMS:
                continue
            seen[id(part)] = part
            with contextlib.suppress(Exception):  # a class of the script's may raise on access
                inner = self._look_at(part)
                room -= 1 + len(inner)
                waiting.extend(inner)
        self._objects += [
            functools.partial(map, space.__getitem__, tuple(names)) for space, names in self._spaces.values()
        ]
        self._parts = seen  # no other object gets their ids
        self._objects = [read for read in self._objects if _can(functools.partial(_listed, read))]
        self._numbers = [read for read in self._numbers if _can(read)]
        self._held, self._counted = self._now()

    @property
    def has_changed(self) -> bool:
        """Whether anything has changed since."""
        try:
            held, counted = self._now()
        except Exception:  # noqa: BLE001 - what was there is gone
            return True
        if counted != self._counted or len(held) != len(self._held):
            return True
        if all(map(operator.is_, held, self._held)):
            return False
        if not all(map(is_same, held, self._held)):
            return True
        self._held = held  # of the same value
        return False

    def renew(self) -> None:
        """Compares with the current values, from here on."""
        with contextlib.suppress(Exception):  # what was there is gone
            self._held, self._counted = self._now()

    def _now(self) -> tuple[list[Any], list[Any]]:
        held = [*itertools.chain.from_iterable([read() for read in self._objects])]
        return held, [read() for read in self._numbers]

    def _look_at(self, part: Any) -> list[Any]:
        """Notes where a part shows a change; returns the parts within it."""
        kind = type(part)
        if issubclass(kind, torch.Tensor):
            if part.layout is not torch.strided or not part.is_shared():
                self._numbers.append(functools.partial(getattr, part, "_version"))
            return []
        if _is_closed(kind):
            return []
        if kind is types.FunctionType:
            for space, names in _read_globally(part):
                self._spaces.setdefault(id(space), (space, {}))[1].update(dict.fromkeys(names))
            if part.__closure__:
                self._objects.append(functools.partial(map, operator.attrgetter("cell_contents"), part.__closure__))
            return self._reach.within(part, _around(part))
        own = _attributes(part)
        if issubclass(kind, type):
            self._objects.append(functools.partial(map, vars(part).__getitem__, tuple(own)))
        elif kind is not types.MethodType:
            if isinstance(named := getattr(part, "__dict__", None), dict):
                self._objects.append(functools.partial(dict.values, named))
            if slots := [name for name in own if hasattr(part, name) and not (named and name in named)]:
                self._objects.append(functools.partial(map, functools.partial(getattr, part), slots))
            self._look_at_items(part, kind)
        return self._reach.within(part, own, _some_items(part))

    def _look_at_items(self, part: Any, kind: type) -> None:
        for holding, items in _ITEMS:
            if issubclass(kind, holding) and holding is not tuple:
                self._numbers.append(functools.partial(holding.__len__, part))
                if holding.__len__(part) <= WATCHED_ITEMS:
                    self._objects.append(functools.partial(items, part))
                elif holding not in {dict, set}:  # which walk past all that was removed at their front
                    self._objects.append(functools.partial(_some_items, part))
        if kind.__module__ == "numpy" and (flat := getattr(part, "flat", None)) is not None:
            step = 1 if len(flat) <= WATCHED_ITEMS else len(flat) // SAMPLED_ITEMS
            self._numbers.append(functools.partial(_some_bytes, part, step))


def _some_items(holder: Any) -> list[Any]:
    """The items of a container; of a large one, some."""
    for kind, items in _ITEMS:
        if issubclass(type(holder), kind):
            count = kind.__len__(holder)
            if count <= WATCHED_ITEMS:
                return list(items(holder))
            if kind in {list, tuple}:
                return list(kind.__getitem__(holder, slice(None, None, count // SAMPLED_ITEMS)))
            return list(itertools.islice(items(holder), SAMPLED_ITEMS))
    return []


def _some_bytes(array: Any, step: int) -> bytes:
    return bytes(array.flat[::step].tobytes())


def _listed(read: Callable[[], Iterable[Any]]) -> list[Any]:
    return list(read())


def _can(read: Callable[[], Any]) -> bool:
    """Whether a function returns anything: a class of the script's may raise on access."""
    with contextlib.suppress(Exception):
        read()
        return True
    return False


def why_trained(part: Any) -> str | None:
    """Why a part that reading uses may be another one after each step; None where nothing speaks for it."""
    kind = type(part)
    uses = f"reading the data uses a {kind.__qualname__}"
    if issubclass(kind, torch.nn.Module) and (weights := list(part.parameters())):
        trains = any(weight.requires_grad for weight in weights)  # otherwise it may average weights that train
        return f"{uses} that training changes" if trains else f"{uses}, which may change while training runs"
    changes = issubclass(kind, torch.optim.Optimizer) or (issubclass(kind, torch.Tensor) and part.requires_grad)
    return f"{uses} that training changes" if changes else None


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
    a function refers to outside itself. Methods, and models that are attributes, count only where reading names them.
    """
    seen: dict[int, Any] = {}
    reach = _Reach()
    waiting = list(holders)[::-1]
    while waiting and len(seen) < MOST_PARTS:
        part = waiting.pop()
        if id(part) not in seen and type(part) not in _ATOMS:
            seen[id(part)] = part
            yield part
            with contextlib.suppress(Exception):  # a class of the script's may raise on access
                waiting += reversed(_parts(part, reach))


class _Reach:
    """Tells what reading reaches by name: of a class its methods, and of an object the models that are attributes.

    A data set of the script's may have a method that evaluates, and hold a model for that.
    """

    def __init__(self) -> None:
        self._named = set(_ENTRIES)
        self._called: set[str] = set()  # by libraries, which call what the script's classes override
        self._methods: dict[str, list[Any]] = {}  # not named so far
        self._models: dict[str, list[Any]] = {}
        self._kinds: set[type] = set()

    def within(self, part: Any, own: dict[str, Any], items: Iterable[Any] = ()) -> list[Any]:
        """What a part holds that reading may use, and what it shows to be used of those before.

        Args:
            part: The part.
            own: Its attributes.
            items: What else it holds.
        """
        kind: type = type(part)
        parts = list(own.values())
        if kind is types.FunctionType:
            return [*parts, *([] if _is_of_library(part) else self._name(_names_of(part.__code__)))]
        if issubclass(kind, type):
            parts = [one for name, value in own.items() for one in self._of_class(name, value)]
        elif kind is not types.MethodType and not issubclass(kind, functools.partial):
            parts = [one for name, one in own.items() if self._is_read(name, one, str(kind.__module__))]
        classes = [one for one in kind.__mro__ if not _is_of_library(one)]
        return [*parts, *items, *classes, *(self._call(kind) if classes else ())]

    def _of_class(self, name: str, value: Any) -> list[Any]:
        function = _function_of(value)
        if type(function) is not types.FunctionType:
            return [value]
        if name in self._named or name in self._called:
            return [function]
        self._methods.setdefault(name, []).append(function)
        return []

    def _is_read(self, name: str, value: Any, module: str) -> bool:
        if not issubclass(type(value), _TRAINED):
            return True
        if _is_library(module) and module.partition(".")[0] not in sys.stdlib_module_names:
            return not module.startswith(_COLLATORS)  # a library's code is not followed
        if name not in self._named:
            self._models.setdefault(name, []).append(value)
        return name in self._named

    def _name(self, names: Iterable[str]) -> list[Any]:
        new = [name for name in names if name not in self._named]
        self._named.update(new)
        return [part for name in new for waits in (self._methods, self._models) for part in waits.pop(name, ())]

    def _call(self, kind: type) -> list[Any]:
        if kind in self._kinds:
            return []
        self._kinds.add(kind)
        called = _called_by_libraries(kind)
        self._called.update(called)
        return [method for name in called for method in self._methods.pop(name, ())]


class OwnDraws:
    """Detects whether reading draws from generators of random numbers that a data set or its collation holds.

    Torch seeds the global generators of torch, Python and NumPy in each worker, but not these.

    Args:
        parts: What they hold, by `held_by`.
    """

    def __init__(self, parts: Iterable[Any]) -> None:
        self._states = [(part, state_of(part)) for part in parts if is_own_generator(part)]

    @property
    def are_seen(self) -> bool:
        """Whether any of them has been drawn from."""
        return any(state_of(part) != state for part, state in self._states)


class CopiedReading:
    """Detects, while this process reads a data set, whether copies of it in workers would read the same.

    Args:
        dataset: The data set.
        collate: What collates.
        begin_worker: The loader's ``worker_init_fn``, which might open files again.
    """

    def __init__(self, dataset: Any, collate: Any, begin_worker: Any) -> None:
        parts = list(held_by(dataset, collate))  # a walk through a million parts takes most of a second
        self._draws = OwnDraws(parts)
        self._why_trained = next(filter(None, map(why_trained, parts)), None)
        self._files = OpenFiles() if begin_worker is None else None

    @property
    def why_no_copies(self) -> str | None:
        """Why copies would not; None if nothing is seen."""
        if self._files is not None and self._files.are_read:
            return SHARED
        return REPEATING if self._draws.are_seen else self._why_trained


def figures_of(dataset: Any) -> list[Any]:
    """The numbers and the generators' states that a data set holds, or one that it wraps: a cache is none of these."""
    figures: list[Any] = []
    seen: list[Any] = []
    while dataset is not None and not any(dataset is one for one in seen):
        seen.append(dataset)
        held = getattr(dataset, "__dict__", None) or {}
        figures += [value for value in held.items() if type(value[1]) in {int, float}]
        figures += [(name, state_of(value)) for name, value in held.items() if is_own_generator(value)]
        dataset = held.get("dataset")
    return figures


def is_own_generator(part: Any) -> bool:
    """Whether something is a generator of random numbers, and none of the global ones."""
    of_numpy = str(type(part).__module__).startswith("numpy.random.")
    seeded = torch.default_generator, _global_of("random", "_inst"), _global_of("numpy.random.mtrand", "_rand")
    is_generator = of_numpy or issubclass(type(part), (random.Random, torch.Generator))
    return is_generator and not any(part is one for one in seeded)


def _global_of(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def state_of(generator: Any) -> bytes | None:
    """The state of a generator; None if it has none to show."""
    with contextlib.suppress(Exception):
        is_torch = isinstance(generator, torch.Generator)
        return generator.get_state().numpy().tobytes() if is_torch else pickle.dumps(generator)
    return None


def _parts(holder: Any, reach: _Reach) -> list[Any]:
    """The attributes and items that may change without their holder."""
    kind = type(holder)
    if _is_closed(kind) or issubclass(kind, torch.Tensor):
        return []
    items = _items(holder)
    return reach.within(holder, _attributes(holder), [] if _are_plain(items) else items)


def _is_closed(kind: type) -> bool:
    """Whether objects of a type are not looked into."""
    package, _, module = str(kind.__module__).partition(".")
    is_tokenizer = package == "tokenizers" or (package == "transformers" and "tokenization" in module)
    return issubclass(kind, _CLOSED) or package in _FOREIGN or is_tokenizer  # which notes the warnings that it gave


def _function_of(value: Any) -> Any:
    """The function that an attribute of a class stands for; the attribute itself where it is another one."""
    kind = type(value)
    if kind is property:
        return value.fget
    if kind is functools.cached_property:
        return value.func
    return value.__func__ if kind in {staticmethod, classmethod} else value


@functools.lru_cache(maxsize=4096)
def _called_by_libraries(kind: type) -> tuple[str, ...]:
    """The names that a class's base classes of libraries use while an object is read, as they call ``forward``."""
    methods = [vars(one) for one in kind.__mro__ if _is_of_library(one)]
    names = dict.fromkeys(sorted(_ENTRIES))
    waiting = list(names)
    for name in waiting:  # grows as it goes
        for function in (_function_of(one[name]) for one in methods if name in one):
            if type(function) is types.FunctionType:
                new = [one for one in _names_of(function.__code__) if one not in names]
                names |= dict.fromkeys(new)
                waiting += new
    return tuple(names)


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
        owner, function = holder.__self__, holder.__func__
        return {"function": function, **(_read_of(owner, function) if _trains(owner) else {"self": owner})}
    if issubclass(kind, type):
        own = {} if _is_of_library(holder) else vars(holder)
        return {name: one for name, one in own.items() if name[:2] != "__" or type(one) is types.FunctionType}
    names = (name for one in kind.__mro__ for name in _slots(one) if hasattr(holder, name))
    own = {**(getattr(holder, "__dict__", None) or {}), **{name: getattr(holder, name) for name in names}}
    if issubclass(kind, functools.partial):
        own |= {"function": holder.func, "arguments": holder.args, "keywords": holder.keywords}
    return own


def _around(function: types.FunctionType) -> dict[str, Any]:
    """The values outside a function that it uses."""
    around = dict(enumerate(function.__closure__ or ()))
    held: dict[str, Any] = {f"cell {place}": cell.cell_contents for place, cell in around.items()}
    held |= {"defaults": function.__defaults__, "keywords": function.__kwdefaults__}
    for place, (space, names) in enumerate(_read_globally(function)):
        held |= {f"{name} {place}": space[name] for name in names}
    return held


def _read_globally(function: types.FunctionType) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """What a function of the script's reads of its globals, and of the script's other modules: names in each."""
    if _is_of_library(function):
        return
    code = function.__code__
    spaces = {id(function.__globals__): (function.__globals__, _globals_of(code))}
    waiting = list(spaces.values())
    for space, names in waiting:  # grows as it goes
        there = [name for name in names if name in space]
        modules = [space[name] for name in there if type(space[name]) is types.ModuleType]
        yield space, [name for name in there if type(space[name]) is not types.ModuleType]
        for module in modules:
            if id(vars(module)) not in spaces and not _is_library(module.__name__):
                spaces[id(vars(module))] = vars(module), _names_of(code)
                waiting.append(spaces[id(vars(module))])


def _read_of(owner: Any, function: Any) -> dict[str, Any]:
    """What a method, and those that it calls, read of an object's attributes."""
    methods = {name: one for kind in reversed(type(owner).__mro__) for name, one in vars(kind).items()}
    own = {**vars(owner), **vars(owner).get("_modules", {}), **vars(owner).get("_parameters", {})}
    names = list(_names_of(function.__code__)) if type(function) is types.FunctionType else []
    called = {}
    for name in names:  # grows as it goes
        method = _function_of(methods.get(name))
        if type(method) is types.FunctionType and not _is_of_library(method):
            called[name] = method
            names += [one for one in _names_of(method.__code__) if one not in names]
    return {**called, **{f"self.{name}": own[name] for name in names if name in own}}


@functools.lru_cache(maxsize=4096)
def _globals_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals that a function, or a function within it, reads."""
    own = [one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"]
    within = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _globals_of(part)]
    return tuple(dict.fromkeys([*own, *within]))


@functools.lru_cache(maxsize=4096)
def _names_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals and attributes that a function, or a function within it, reads."""
    within = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names_of(part)]
    return tuple(dict.fromkeys([*code.co_names, *within]))


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
