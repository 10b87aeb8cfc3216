"""A script's loader that feeds training: the script draws from it on and on, and each player from its own stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .batches import Batches
from .naming import length_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from .stream import Stream


class Source(Batches):
    """What the script draws from, whichever config plays.

    Args:
        loader: The script's.
        streams: Gives the streams of the player that plays, by source.
        make: Makes its stream of this source, when it first draws.
        before_draw: Called before each draw; another player may play after it.

    Attributes:
        drawn: Batches that the script has drawn, with all players.
        own_pass: Batches after which the script left its loader off twice in succession; None where it has not.
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
        """That of the player that plays."""
        streams = self._streams()
        if self not in streams:
            streams[self] = self._make()
        return streams[self]

    @property
    def has_passed_epoch(self) -> bool:
        """Whether the script has drawn as much as its epoch holds: in batches, or in samples where batches are larger.

        By what it has drawn itself, wherever that lies in the stream.
        """
        batches, stream = length_of(self._loader), self.stream
        in_batches = batches is not None and self.drawn >= batches
        return in_batches or (stream.length is not None and self._samples + stream.last_samples > stream.length)

    def note_pass(self) -> None:
        """The script begins its loader anew, which it has not seen come to its end."""
        batches, self._drawn_before = self.drawn - self._drawn_before, self.drawn
        if batches == self._last_pass and 0 < batches < (length_of(self._loader) or 0):
            self.own_pass = batches
        self._last_pass = batches
