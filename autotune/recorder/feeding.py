"""Which of a script's loaders feed training, draw by draw: in a burst, those draw from streams, and others do not."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .stream import Watched

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from .hooks import Iterate
    from .stream import Stream

Maker = Callable[["DataLoader[Any]", str], "Stream"]


class Aside(Watched):
    """An iterator of batches that training is not fed with.

    Args:
        batches: The iterator.
        draws: Called before each batch is drawn.
    """

    def __init__(self, batches: Iterator[Any], draws: Callable[[], None]) -> None:
        super().__init__(batches)
        self._draws = draws

    def __next__(self) -> Any:
        self._draws()
        return super().__next__()


class Reader:
    """A pass of the script's through a loader that may feed training: its batches are a stream's where they do.

    Where they do not, they come from an iterator of that very loader, made as soon as it is needed.

    Args:
        loader: The script's.
        key: Of the loader in the loop.
        iterate: Torch's own ``DataLoader.__iter__``.
        feeding: Tells the stream.
        draws_aside: Called before each batch is drawn that does not feed training.

    Attributes:
        loader: The script's.
        key: Of the loader in the loop.
        is_evaluated: Whether it began while the models evaluate.
        trains: Whether the script trains on its batches, though they are no stream's.
        stream: That it was given.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        key: str,
        iterate: Iterate,
        feeding: Feeding,
        draws_aside: Callable[[], None],
        *,
        is_evaluated: bool,
    ) -> None:
        self.loader, self.key = loader, key
        self.is_evaluated = is_evaluated
        self.trains = False
        self.stream: Stream | None = None
        self._iterate = iterate
        self._feeding = feeding
        self._draws_aside = draws_aside
        self._aside: Aside | None = None

    def __iter__(self) -> Reader:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:
        stream = self._feeding.stream_of(self) if torch.is_grad_enabled() else None
        return next(self._batches_aside if stream is None else stream)

    def __getattr__(self, name: str) -> Any:
        """What frameworks ask of torch's own iterators."""
        if name.startswith("__") or "_aside" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._aside if self.stream is None else self.stream, name)

    @property
    def is_over(self) -> bool:
        """Whether its own batches are: a stream's never are."""
        return self._aside is not None and self._aside.is_over

    @property
    def _batches_aside(self) -> Aside:
        if self._aside is None:
            self._draws_aside()  # its workers start
            self._aside = Aside(self._iterate(self.loader), self._draws_aside)
        return self._aside


class Feeding:
    """Hands streams to the passes that feed training.

    A script may make its loader again, and evaluate with one that is like it. So a stream goes on to another loader
    once nobody is left who reads it, or once the script has trained on that one's batches.

    Args:
        keys: Of the loaders of the loop; as often as there are such.
        evaluates: Whether the models are in a mode in which this script does not train.
        make: Makes a stream of a loader, known by a key.
    """

    def __init__(self, keys: list[str], evaluates: Callable[[], bool], make: Maker) -> None:
        self._keys = keys
        self._evaluates = evaluates
        self._make = make
        self._streams: dict[str, list[Stream]] = {}
        self._readers: dict[int, list[weakref.ref[Reader]]] = {}  # by the id of their stream
        self._known: dict[int, tuple[Any, Stream]] = {}  # the loader too, so that no other one gets its id
        self._aside: weakref.ref[Reader] | None = None  # who drew last, if that was no stream's

    def stream_of(self, reader: Reader) -> Stream | None:
        """What a pass draws from next, with gradients wanted; None: from its own loader."""
        if reader.stream is None and (stream := self._found(reader)) is not None:
            reader.stream = stream
            self._readers.setdefault(id(stream), []).append(weakref.ref(reader))
            if len(self._keys) == 1:
                stream.note_pass()
        self._aside = weakref.ref(reader) if reader.stream is None else None
        return reader.stream

    def trains(self) -> None:
        """The script trains on what was drawn last."""
        reader = self._aside() if self._aside is not None else None
        if reader is not None and not reader.is_over:
            reader.trains = True

    def _found(self, reader: Reader) -> Stream | None:
        if reader.is_evaluated and self._evaluates():
            return None
        known = self._known.get(id(reader.loader))
        if known is None and (stream := self._free(reader)) is not None:
            known = self._known[id(reader.loader)] = (reader.loader, stream)
        return known[1] if known is not None else None

    def _free(self, reader: Reader) -> Stream | None:
        """A stream for a loader that has none: a new one, or one that another loader had."""
        streams = self._streams.setdefault(reader.key, [])
        if len(streams) < self._keys.count(reader.key):
            streams.append(self._make(reader.loader, reader.key))
            return streams[-1]
        free = [one for one in streams if not self._is_read(one)]
        return next(iter(free or (streams if reader.trains else ())), None)

    def _is_read(self, stream: Stream) -> bool:
        """Whether the script still holds a pass through it."""
        readers = [one for one in self._readers.get(id(stream), ()) if one() is not None]
        self._readers[id(stream)] = readers
        return bool(readers)
