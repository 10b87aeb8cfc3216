"""What a search tells while it runs; it knows nothing of terminals."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from autotune.measuring import Burst


class Progress(Protocol):
    """What the search tells while it runs."""

    def __enter__(self) -> Progress:
        """Begins to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends showing, whatever happened."""
        ...

    def stage(self, name: str) -> None:
        """A part of the search begins, e.g. ``probing``, ``baseline``, ``TPE``, ``confirming``."""
        ...

    def burst(self, burst: Burst, best: Burst | None, remaining_seconds: float) -> None:
        """A burst has ended.

        Args:
            burst: The one that ended.
            best: The best so far, this one included.
            remaining_seconds: What is left of the budget.
        """
        ...

    def note(self, text: str) -> None:
        """Something that a person should know."""
        ...
