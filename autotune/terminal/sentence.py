"""Progress as one line of text, for programs that show it elsewhere, such as an agent's client."""

from __future__ import annotations

from autotune.measuring import SAMPLES_PER_SECOND, Burst, Objective, Pair, Point
from autotune.terminal.progress import Quiet, Tally, gain_text


class Sentence(Quiet):
    """Keeps what the search tells; `text` says where it stands."""

    def __init__(self, objective: Objective = SAMPLES_PER_SECOND) -> None:
        self._tally = Tally(objective)
        self._best = self._last = self._playing = ""

    def stage(self, name: str) -> None:
        """A part begins."""
        self._tally.stage, self._playing = name, ""

    def burst(self, burst: Burst, pair: Pair | None, best: Burst | None, remaining_seconds: float) -> None:  # noqa: ARG002
        """A burst has ended."""
        self._playing = ""
        self._last = f"last: {self._tally.add(burst, pair)}"
        if best is not None and best.ok:
            self._best = f"best so far: {self._tally.describe(best)}"

    def duet(self, candidate: Point, pair: Pair) -> None:
        """A turn goes on."""
        changes = candidate.changes_text(pair.partner) or "the same config"
        self._playing = f"comparing: {gain_text(pair)} for {changes}"

    def text(self) -> str:
        """Stage, how much is decided, the comparison that runs, the best so far, the last burst."""
        decided = f"{self._tally.decided} decided" if self._tally.decided else ""
        return " | ".join(filter(None, (self._tally.stage, decided, self._playing, self._best, self._last)))
