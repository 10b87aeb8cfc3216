"""Iterators that stand in for torch's own iterator of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..torch_settings.undo import nothing


class Batches(Iterator[Any]):
    """Hands on batches; any other attribute comes from the inner iterator, one of torch's."""

    def _inner(self) -> Any:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self.__dict__:
            raise AttributeError(name)
        return getattr(self._inner(), name)


class Watched(Batches):
    """An iterator of a loader that shows each batch to a function before the script gets it.

    Args:
        batches: The iterator.
        drawn: Called with each batch.
        draws: Called before each batch is drawn.
        ended: Called when there are no more.
        dropped: Called when nothing refers to it any more.

    Attributes:
        is_over: Whether there are no more, or reading has failed.
        count: Batches so far.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        drawn: Callable[[Any], None] = nothing,
        draws: Callable[[], None] = nothing,
        ended: Callable[[], None] = nothing,
        dropped: Callable[[], None] = nothing,
    ) -> None:
        self.is_over = False
        self.count = 0
        self._batches = batches
        self._drawn = drawn
        self._draws = draws
        self._ended = ended
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped()

    def look_away(self) -> None:
        """Stops calling the functions."""
        self._drawn = self._draws = self._ended = nothing

    def _inner(self) -> Any:
        return self._batches

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        self._draws()
        try:
            batch = next(self._batches)
        except BaseException as error:
            self.is_over = True
            if isinstance(error, StopIteration):
                self._ended()
            raise
        self.count += 1
        self._drawn(batch)
        return batch
