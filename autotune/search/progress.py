"""What a search tells while it runs; it knows nothing of terminals."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from autotune.measuring import Burst, Interval, Point


class Progress(AbstractContextManager["Progress"], Protocol):
    """What the search tells while it runs; it shows while it is open."""

    def stage(self, name: str) -> None:
        """A part of the search begins, such as ``probing`` or ``baseline``."""

    def duet(self, candidate: Point, incumbent: Point, ratio: float, interval: Interval) -> None:
        """A duet goes on: the candidate's speed over the incumbent's so far."""

    def burst(self, burst: Burst, best: Burst | None, remaining_seconds: float) -> None:
        """A burst has ended; `best` is the best so far, this one included."""

    def note(self, text: str) -> None:
        """Something that a person should know."""
