"""The progress events of a search, independent of any terminal."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from autotune.measuring import Burst, Pair, Point


class Progress(AbstractContextManager["Progress"], Protocol):
    """Receives progress events while a search runs, and shows them while open."""

    def stage(self, name: str) -> None:
        """A part of the search begins, such as ``probing`` or ``baseline``."""

    def duet(self, candidate: Point, pair: Pair) -> None:
        """A turn has been played: the candidate's speed over the incumbent's so far."""

    def burst(self, burst: Burst, pair: Pair | None, best: Burst | None, remaining_seconds: float) -> None:
        """A burst has ended, after a duet if there is a pair; `best` is the best burst so far, including this one."""

    def note(self, text: str) -> None:
        """A note for the user."""
