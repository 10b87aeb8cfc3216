"""The progress events of a search, independent of any terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.measuring.pairs import Pair
from autotune.measuring.records import Burst, Point

if TYPE_CHECKING:
    from typing_extensions import Self


class Progress:
    """Receives progress events while a search runs. This one shows nothing; others show them while they are open.

    Attributes:
        baseline: What the bursts are compared with; None until that is known.
    """

    baseline: Point | None = None

    def __enter__(self) -> Self:
        """Begins to show."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Ends showing; `kind` is that of the error by which the search ended."""

    def stage(self, name: str) -> None:
        """A part of the search begins, such as ``probing`` or ``baseline``."""

    def duet(self, candidate: Point, pair: Pair) -> None:
        """A turn has been played: the candidate's speed over the incumbent's so far."""

    def burst(
        self, burst: Burst, pair: Pair | None, best: Burst | None, remaining_seconds: float, gain: float | None = None
    ) -> None:
        """A burst has ended, after a duet if there is a pair.

        `best` is the best burst so far, including this one. `gain` is its point's score over the baseline's, as all
        pairs so far estimate it; None if not known.
        """

    def note(self, text: str) -> None:
        """A note for the user."""
