"""Batches of any structure: moving them to the device, and grouping them into optimizer steps."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch


def move(batch: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """Moves a batch to a device: tensors in mappings, sequences and dataclasses; anything with ``.to``.

    Args:
        batch: A batch of the loader.
        device: The target device.
        non_blocking: Do not wait for the copies.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=non_blocking)
    # Before the containers: packed sequences and token batches move themselves. A named tuple may have a field `to`.
    if callable(getattr(batch, "to", None)):
        if non_blocking:
            with contextlib.suppress(TypeError):  # not every .to() has this argument
                return batch.to(device, non_blocking=True)
        return batch.to(device)
    return _rebuild(batch, lambda part: move(part, device, non_blocking=non_blocking))


def with_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """A batch of the same structure with each tensor changed; None stays None.

    Raises:
        TypeError: The batch holds something other than tensors, None, mappings, sequences and dataclasses.
    """
    if batch is None or isinstance(batch, torch.Tensor):
        return batch if batch is None else change(batch)
    changed = _rebuild(batch, lambda part: with_tensors(part, change))
    if changed is batch:
        raise TypeError(f"a batch holds a {type(batch).__name__}, which is no tensor")
    return changed


Around = Callable[[Iterable[Any], int], Iterator[Any]]
"""Wraps the batches of a step; the number is how many to expect."""


class MicroBatches:
    """The micro-batches of one optimizer step: iterate once; ``len()`` is how many to expect.

    Args:
        batches: The loader's remaining batches.
        size: How many to expect.
        move: Moves one to the device.
        around: Wraps the moved batches.
    """

    def __init__(
        self, batches: Iterator[Any], size: int, move: Callable[[Any], Any], around: Around | None = None
    ) -> None:
        self._size = size
        self._move = move
        self._around = around
        # The first is drawn at once, so that the end of an unsized loader makes no empty group.
        first = list(itertools.islice(batches, 1))
        self.has_first = bool(first)
        self._remaining = itertools.chain(first, itertools.islice(batches, size - 1))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        moved = map(self._move, self._remaining)
        return moved if self._around is None else self._around(moved, self._size)

    def finish(self) -> None:
        """Draws the batches that the caller did not, so that the next group starts in the right place."""
        for _ in self._remaining:
            pass


def _rebuild(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A container of the same type with its parts changed; anything else is returned unchanged."""
    if isinstance(batch, Mapping):
        changed = {key: change(value) for key, value in batch.items()}
        if not isinstance(batch, MutableMapping):
            return type(batch)(changed)  # type: ignore[call-arg]
        batch = copy.copy(batch)  # keeps a subclass's other attributes, as torch's own collation does
        batch.update(changed)
    elif isinstance(batch, (list, tuple)):
        parts = [change(part) for part in batch]
        batch = type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        batch = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(batch, field.name, change(getattr(batch, field.name)))
    return batch
