"""How a change is taken back: each function that changes something returns the function that takes it back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

Undo = Callable[[], None]
"""Takes back what one call has changed; to be called once."""
_KEPT = "_kept_by_autotune"  # attribute of a model, or an optimizer
_ABSENT = object()


def nothing() -> None:
    """Takes back nothing, since nothing was changed."""


def never() -> None:
    """Stands for a change that a process keeps until its end.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError("only a new process can take this back")


def in_reverse(undos: Sequence[Undo]) -> Undo:
    """Takes back several changes, the last one first."""

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo


def unless_changed(read: Callable[[], Any], undo: Undo) -> Undo:
    """Takes a change back, unless something else has changed what ``read`` returns since."""
    seen = read()
    return lambda: undo() if read() == seen else None


def put(owner: Any, name: str, value: Any) -> Undo:
    """Sets an attribute of an object or a class; its undo removes what the object itself did not have."""
    undo = remember(owner, name)
    setattr(owner, name, value)
    return undo


def remember(owner: Any, name: str) -> Undo:
    """Changes nothing yet: its undo takes back what others do to an attribute, as that of `put`."""
    before = vars(owner).get(name, _ABSENT)

    def undo() -> None:
        if before is not _ABSENT:
            setattr(owner, name, before)
        elif name in vars(owner):
            delattr(owner, name)

    return undo


class _Kept(dict[Any, Any]):
    """What is made for one owner; a copy of the owner, or its pickle, has an empty dictionary instead."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return dict, ()


def kept_on(owner: nn.Module | Optimizer) -> dict[Any, Any]:
    """What is kept as long as a model or an optimizer is there: compiled code, undos."""
    kept = vars(owner).get(_KEPT)
    if type(kept) is not _Kept:
        kept = vars(owner)[_KEPT] = _Kept()
    return kept
