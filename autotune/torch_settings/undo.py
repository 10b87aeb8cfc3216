"""Undoing changes: each function that changes something returns a function that undoes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

Undo = Callable[[], None]
"""Undoes the changes of one call; call it once."""
_KEPT = f"_kept_by_{__name__.partition('.')[0]}"  # attribute of the owner
"""The recorder's copy of this module in a script that imports autotune keeps its own."""
_ABSENT = object()


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
    """Sets an attribute of an object or a class; the undo restores or removes it, unless others have set it since."""
    restore = remember(owner, name)
    setattr(owner, name, value)
    return lambda: restore() if vars(owner).get(name, value) is value else None


def remember(owner: Any, name: str) -> Undo:
    """Changes nothing; the undo restores an attribute that others change, like that of `put`."""
    before = vars(owner).get(name, _ABSENT)

    def undo() -> None:
        if before is not _ABSENT:
            setattr(owner, name, before)
        elif name in vars(owner):
            delattr(owner, name)

    return undo


class _Kept(dict[Any, Any]):
    """A dictionary for one owner; copies and pickles of the owner get an empty one."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return dict, ()


def kept_on(owner: nn.Module | Optimizer | DataLoader[Any]) -> dict[Any, Any]:
    """Values that live as long as a model, an optimizer or a loader: compiled code, undos, a stand-in."""
    kept = vars(owner).get(_KEPT)
    if type(kept) is not _Kept:
        kept = vars(owner)[_KEPT] = _Kept()
    return kept
