"""A loader with tuned settings that draws the same random numbers as your own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from autotune.recorder.drawing import Drawing, Own
from autotune.training.ranks import this_rank


class TunedLoader(Drawing):
    """A loader that shuffles and draws random numbers as it would without the tuned settings.

    Attributes:
        own: Settings of your own loader, whose draws it reproduces.
    """

    own = Own()
    _is_read = False

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not (self.num_workers or self.own.workers):
            return super().__iter__()
        goes_on, self._is_read = self._is_read, True
        # Looked up now: the recorder, or the notes of a training, may have wrapped it.
        return self.read(self.own, None, DataLoader.__iter__, _warn, goes_on=goes_on)


def _warn(sentence: str) -> None:
    if this_rank().number == 0:
        warnings.warn(sentence, stacklevel=2)
