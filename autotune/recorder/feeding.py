"""Decides draw by draw which of a script's loaders feed training: in a burst only those draw from sources."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..torch_settings.naming import length_of
from .batches import Batches, Watched

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from .hooks import Iterate
    from .stream import Stream


Maker = Callable[["DataLoader[Any]", str], "Source | None"]


class Reader(Batches):
    """A pass of the script through a loader that may feed training.

    If it does, its batches come from a source. If not, they come from an iterator of the loader, made on first use.

    Args:
        loader: The script's loader.
        key: The loader's key in the loop.
        iterate: Torch's own ``DataLoader.__iter__``.
        feeding: Assigns the source.
        draws_aside: Called before each draw of a batch that does not feed training.

    Attributes:
        is_evaluated: Whether it began while the models evaluate.
        trains: Whether the script trains on its batches although it has no source.
        source: The source that was assigned.
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
        self.source: Source | None = None
        self._iterate = iterate
        self._feeding = feeding
        self._draws_aside = draws_aside
        self._aside: Watched | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:
        source = self._feeding.source_of(self) if torch.is_grad_enabled() else None
        return next(self._batches_aside if source is None else source)

    def _inner(self) -> Any:
        return self._batches_aside if self.source is None else self.source

    @property
    def is_over(self) -> bool:
        """Whether its own batches have ended; a source never ends."""
        return self._aside is not None and self._aside.is_over

    @property
    def _batches_aside(self) -> Watched:
        if self._aside is None:
            self._draws_aside()  # its workers start
            self._aside = Watched(self._iterate(self.loader), draws=self._draws_aside)
        return self._aside


class Feeding:
    """Hands sources to the passes that feed training.

    A script may recreate its loader, and evaluate with a similar one. So a source moves to another loader once no pass
    reads from it, or once the script has trained on the other loader's batches.

    Args:
        keys: Keys of the loop's loaders, one for each loader.
        evaluates: Whether the models are in a mode in which this script does not train.
        make: Makes a source from a loader and its key; None before the training loop.
    """

    def __init__(self, keys: list[str], evaluates: Callable[[], bool], make: Maker) -> None:
        self._keys = keys
        self._evaluates = evaluates
        self._make = make
        self._sources: dict[str, list[Source]] = {}
        self._readers: dict[int, list[weakref.ref[Reader]]] = {}  # by the id of their source
        self._known: dict[int, tuple[Any, Source]] = {}  # keeps the loader, so that no other one gets its id
        self._aside: weakref.ref[Reader] | None = None  # the reader that drew last, if without a source

    def source_of(self, reader: Reader) -> Source | None:
        """The source that a pass draws from next, with gradients enabled; None for its own loader."""
        if reader.source is None and (source := self._found(reader)) is not None:
            reader.source = source
            self._readers.setdefault(id(source), []).append(weakref.ref(reader))
            if len(self._keys) == 1:
                source.note_pass()
        self._aside = weakref.ref(reader) if reader.source is None else None
        return reader.source

    def trains(self) -> None:
        """Notes that the script trains on the last batch."""
        reader = self._aside() if self._aside is not None else None
        if reader is not None and not reader.is_over:
            reader.trains = True

    def _found(self, reader: Reader) -> Source | None:
        if reader.is_evaluated and self._evaluates():
            return None
        entry = self._known.get(id(reader.loader))
        if entry is None and (source := self._free(reader)) is not None:
            entry = self._known[id(reader.loader)] = (reader.loader, source)
        return entry[1] if entry is not None else None

    def _free(self, reader: Reader) -> Source | None:
        """A source for a loader without one: a new one, or one that another loader had."""
        sources = self._sources.setdefault(reader.key, [])
        if len(sources) < self._keys.count(reader.key):
            if (made := self._make(reader.loader, reader.key)) is not None:
                sources.append(made)
            return made
        free = [one for one in sources if not self._is_read(one)]
        return next(iter(free or (sources if reader.trains else ())), None)

    def _is_read(self, source: Source) -> bool:
        """Whether the script still holds a pass through it."""
        readers = [one for one in self._readers.get(id(source), ()) if one() is not None]
        self._readers[id(source)] = readers
        return bool(readers)


class Source(Batches):
    """The iterator that the script draws from, whichever config plays.

    Args:
        loader: The script's loader.
        streams: Returns the streams of the current player, by source.
        make: Makes the player's stream for this source, at its first draw.
        before_draw: Called before each draw; it may switch to another player.

    Attributes:
        drawn: Batches that the script has drawn, with all players.
        own_pass: Batches after which the script ended its pass early twice in succession; None if it has not.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        streams: Callable[[], dict[Source, Stream]],
        make: Callable[[], Stream],
        before_draw: Callable[[], None] = lambda: None,
    ) -> None:
        self.drawn = 0
        self.own_pass: int | None = None
        self._loader = loader
        self._streams = streams
        self._make = make
        self._before_draw = before_draw
        self._samples = 0
        self._drawn_before, self._last_pass = 0, 0

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        self._before_draw()
        samples, batch = next(self.stream)
        self.drawn += 1
        self._samples += samples
        return batch

    def _inner(self) -> Any:
        return self.stream.running

    @property
    def stream(self) -> Stream:
        """The stream of the current player."""
        streams = self._streams()
        if self not in streams:
            streams[self] = self._make()
        return streams[self]

    @property
    def has_passed_epoch(self) -> bool:
        """Whether the script has drawn a whole epoch: in batches, or in samples if batches are larger.

        It counts the script's own draws, at any position in the stream.
        """
        batches, stream = length_of(self._loader), self.stream
        in_batches = batches is not None and self.drawn >= batches
        return in_batches or (stream.length is not None and self._samples + stream.last_samples > stream.length)

    def note_pass(self) -> None:
        """Notes that the script restarts its loader before the end."""
        batches, self._drawn_before = self.drawn - self._drawn_before, self.drawn
        if batches == self._last_pass and 0 < batches < (length_of(self._loader) or 0):
            self.own_pass = batches
        self._last_pass = batches
