"""A loader with tuned settings that draws the same random numbers as your own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from autotune.recorder.drawing import Drawing, Own
from autotune.training.ranks import this_rank


class TunedLoader(Drawing):
    """A loader that shuffles, and leaves random numbers to training, as it would without the tuned settings.

    Attributes:
        own: Yours, that it draws as.
    """

    own = Own()
    _is_read = False

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if not (self.num_workers or self.own.workers):
            return super().__iter__()
        goes_on, self._is_read = self._is_read, True
        # Looked up now: the recorder, or what notes a training, may have put itself around it.
        return self.read(self.own, None, DataLoader.__iter__, _warn, goes_on=goes_on)


def _warn(sentence: str) -> None:
    if this_rank().number == 0:
        warnings.warn(sentence, stacklevel=2)
