"""What a search tells while it runs; it knows nothing of terminals."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from autotune.measuring import Burst, Pair, Point


class Progress(AbstractContextManager["Progress"], Protocol):
    """What the search tells while it runs; it shows while it is open."""

    def stage(self, name: str) -> None:
        """A part of the search begins, such as ``probing`` or ``baseline``."""

    def duet(self, candidate: Point, pair: Pair) -> None:
        """A turn goes on: the candidate's speed over the incumbent's so far."""

    def burst(self, burst: Burst, pair: Pair | None, best: Burst | None, remaining_seconds: float) -> None:
        """A burst has ended, beside the incumbent if there is a pair; `best` is the best so far, this one included."""

    def note(self, text: str) -> None:
        """Something that a person should know."""
