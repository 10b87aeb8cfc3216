"""A script's loader that feeds training: the script draws endlessly from it, each player from its own stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..torch_settings.naming import length_of
from .batches import Batches

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from .stream import Stream


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
