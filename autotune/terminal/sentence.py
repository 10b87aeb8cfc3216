"""Progress as one line of text that is read now and then: for whoever shows it elsewhere, such as an agent's client."""

from __future__ import annotations

from autotune.measuring import SAMPLES_PER_SECOND, Burst, Interval, Objective, Point
from autotune.terminal.progress import Duet, Quiet, Tally


class Sentence(Quiet):
    """Keeps what the search tells; `text` says where it stands."""

    def __init__(self, objective: Objective = SAMPLES_PER_SECOND) -> None:
        self._tally = Tally(objective)
        self._best = self._last = ""

    def stage(self, name: str) -> None:
        """A part begins."""
        self._tally.stage, self._tally.duet = name, None

    def burst(self, burst: Burst, best: Burst | None, remaining_seconds: float) -> None:  # noqa: ARG002
        """A burst has ended."""
        self._last = f"burst {self._tally.bursts + 1}: {self._tally.add(burst)}"
        if best is not None and best.ok:
            self._best = self._tally.describe(best)

    def duet(self, candidate: Point, incumbent: Point, ratio: float, interval: Interval) -> None:
        """A duet goes on."""
        self._tally.duet = Duet(candidate, incumbent, ratio, interval)

    def text(self) -> str:
        """Stage, the comparison that runs, the best so far, the last burst."""
        parts = [self._tally.stage]
        if (duet := self._tally.duet) is not None:
            changes = duet.candidate.changes_text(duet.incumbent) or "the same config"
            parts.append(f"comparing: {duet.figure} for {changes}")
        parts += [f"best so far: {self._best}"] if self._best else []
        parts += [self._last] if self._last else []
        return " | ".join(parts)
