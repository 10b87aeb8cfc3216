"""Progress as one line of text, for programs that show it themselves, such as an agent's client."""

from __future__ import annotations

from autotune.measuring import SAMPLES_PER_SECOND, Burst, Objective, Pair, Point
from autotune.terminal.progress import Quiet, Tally, gain_text


class Sentence(Quiet):
    """Keeps the search's latest progress; `text` formats it."""

    def __init__(self, objective: Objective = SAMPLES_PER_SECOND) -> None:
        self._tally = Tally(objective)
        self._best = self._last = self._playing = ""

    def stage(self, name: str) -> None:
        """Starts a stage."""
        self._tally.stage, self._playing = name, ""

    def burst(self, burst: Burst, pair: Pair | None, best: Burst | None, remaining_seconds: float) -> None:  # noqa: ARG002
        """Keeps a burst that has ended."""
        self._playing = ""
        self._last = f"last: {self._tally.add(burst, pair)}"
        if best is not None and best.ok:
            self._best = f"best so far: {self._tally.describe(best)}"

    def duet(self, candidate: Point, pair: Pair) -> None:
        """Keeps the ratio of a running duet."""
        changes = candidate.changes_text(pair.partner) or "the same config"
        self._playing = f"comparing: {gain_text(pair)} for {changes}"

    def text(self) -> str:
        """The stage, the number of decisions, the running duet, the best so far, the last burst."""
        decided = f"{self._tally.decided} decided" if self._tally.decided else ""
        return " | ".join(filter(None, (self._tally.stage, decided, self._playing, self._best, self._last)))
