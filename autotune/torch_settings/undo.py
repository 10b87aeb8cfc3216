"""Undoing changes: each function that changes something returns a function that undoes it."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

Undo = Callable[[], None]
"""Undoes the changes of one call; call it once."""
_OURS = "_kept_by_autotune"
_KEPT = f"{_OURS}_{__name__.partition('.')[0]}"  # attribute of the owner
"""A script that imports autotune has two copies of this module, the recorder's too. Each keeps its own, in here."""
_PUT = "_put_by_autotune"  # attribute of a function that was put: (the function, a getter of the script's own)
_ABSENT = dataclasses.MISSING  # the same to both


def nothing(*_: Any, **__: Any) -> None:
    """Does nothing: no change is to be undone, or no function to be called."""


def never() -> None:
    """Represents a change that a process keeps until its end.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError("only a new process can take this back")


def in_reverse(undos: Sequence[Undo]) -> Undo:
    """Undoes several changes, the last one first."""

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo


def unless_changed(read: Callable[[], Any], undo: Undo) -> Undo:
    """Undoes a change, unless the result of ``read`` has changed since."""
    seen = read()
    return lambda: undo() if read() == seen else None


def put(owner: Any, name: str, value: Any) -> Undo:
    """Sets an attribute of an object or a class; the undo restores or removes it, unless others have set it since.

    Only its own: a Fabric model sets an attribute on the model inside as well, and each would call the other. Where the
    value is a function, pickles of a model have the script's own.
    """
    restore = remember(owner, name)
    if type(function := getattr(value, "__func__", value)) is types.FunctionType:
        before = _own(vars(owner).get(name, _ABSENT), owner)
        is_own_method = type(before) is types.MethodType and before.__self__ is owner

        def own(other: Any) -> Any:
            return types.MethodType(before.__func__, other) if is_own_method else before

        setattr(function, _PUT, (function, own))
        _keep_out_of_pickles(owner)
    _set(owner, name, value)
    return lambda: restore() if vars(owner).get(name, value) is value else None


def remember(owner: Any, name: str) -> Undo:
    """Changes nothing; the undo restores an attribute that others change, like that of `put`."""
    before = vars(owner).get(name, _ABSENT)

    return lambda: _set(owner, name, before)


def _set(owner: Any, name: str, value: Any) -> None:
    """Sets an owner's own attribute or, where the value is absent, removes it."""
    if isinstance(owner, type):
        if value is not _ABSENT:
            setattr(owner, name, value)
        elif name in vars(owner):
            delattr(owner, name)
    elif value is not _ABSENT:
        vars(owner)[name] = value
    else:
        vars(owner).pop(name, None)


class _Kept(dict[Any, Any]):
    """A dictionary for one owner; copies and pickles of the owner leave it out, or get an empty one."""

    def __reduce__(self) -> tuple[type, tuple[()]]:  # for models that copy their own attributes
        return dict, ()


def kept_on(owner: nn.Module | Optimizer | DataLoader[Any]) -> dict[Any, Any]:
    """Values that live as long as a model, an optimizer or a loader: compiled code, undos, a stand-in."""
    kept = vars(owner).get(_KEPT)
    if type(kept) is not _Kept:
        kept = vars(owner)[_KEPT] = _Kept()
        _keep_out_of_pickles(owner)
    return kept


def take_kept(owner: nn.Module | Optimizer, what: Any) -> Any:
    """Takes one of these values away; with the last one, the owner's attribute goes as well."""
    kept = vars(owner).get(_KEPT, {})
    value = kept.pop(what, None)
    if not kept:
        vars(owner).pop(_KEPT, None)
    return value


def _keep_out_of_pickles(owner: Any) -> None:
    """Makes copies and pickles of all models, or loaders, hold what the script has made, from here on.

    Files must be those of a run without autotune. A deep copy of a model keeps the methods that we have put, since it
    gets its own: it trains as the model does. Its pickles leave them out too, after the undo as well.
    """
    from torch import nn
    from torch.utils.data import DataLoader

    for kind in (nn.Module, DataLoader):
        # Not __getstate__: classes replace that one without calling torch's, as Lightning's and DDP do.
        if issubclass(type(owner), kind) and kind.__reduce_ex__ is object.__reduce_ex__:
            kind.__reduce_ex__ = _reducer(kind)  # type: ignore[method-assign]


def _reducer(kind: Any) -> Any:
    def reduced(self: Any, protocol: Any) -> Any:
        caller = sys._getframe(1)  # copy.deepcopy asks just as pickle does
        is_copied = caller.f_code.co_name == "deepcopy" and caller.f_globals.get("__name__") == "copy"
        return _without_ours(super(kind, self).__reduce_ex__(protocol), self, is_copied=is_copied)

    return reduced


def _without_ours(part: Any, owner: Any, *, is_copied: bool) -> Any:
    """What pickle gets for an owner, without what is ours in its attributes."""
    if type(part) is tuple:
        return tuple(_without_ours(one, owner, is_copied=is_copied) for one in part)
    if type(part) is not dict:
        return part
    script = {}
    for name, value in part.items():
        is_kept = is_copied and type(value) is types.MethodType and value.__self__ is owner
        own = _ABSENT if str(name).startswith(_OURS) else value if is_kept else _own(value, owner)
        if own is not _ABSENT:
            script[name] = own
    is_same = len(script) == len(part) and all(script[name] is value for name, value in part.items())
    return part if is_same else script


def _own(value: Any, owner: Any) -> Any:
    """What an attribute of an owner is to the script, which does not know what `put` has put there."""
    if type(value) not in {types.FunctionType, types.MethodType}:
        return value
    function = getattr(value, "__func__", value)
    itself, own = getattr(function, _PUT, (None, nothing))
    if itself is not function:  # a wrapper by the script has a copy of the attribute
        return value
    holder = getattr(value, "__self__", owner)
    if holder is not owner and own(holder) is _ABSENT:  # a script may give one model the forward of another
        return getattr(type(holder), value.__name__).__get__(holder)
    return own(holder)
