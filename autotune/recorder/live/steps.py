"""Counts the steps of a training, and separates ordinary ones from those that hold something else.

An evaluation, the end of a pass or a checkpoint is no setting's doing. A step that holds one does not count as trained,
unless each step does.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from ...timing.clock import clock_of

WARM_STEPS = 8
"""The steps before the search: they allocate, compile and fill caches. Not tuned."""
ODD_TIMES, ODD_SECONDS = 5.0, 0.5
"""A step that takes this many times the usual one, and at least these seconds more, holds something else. Not tuned."""


class Steps:
    """The steps of one training.

    Attributes:
        count: Steps so far.
        trained: Seconds of the ordinary ones.
        waited: Seconds that training has waited for data.
        usual: Seconds of a step in the script's own setting; 0 until it is known.
        clock: The clock of the device that trains.
    """

    def __init__(self) -> None:
        self.count, self.trained, self.waited, self.usual = 0, 0.0, 0.0, 0.0
        self.clock = clock_of(torch.device("cpu"))
        self._last: float | None = None  # the time when the last step ended
        self._marks: list[Any] = []  # the end of the last step, and the next batch's draw
        self._held: set[str] = set()  # what else this step has held so far
        self._recent: deque[set[str]] = deque(maxlen=WARM_STEPS)  # the same, of the last steps
        self._recurring: set[str] = set()
        self._paced = (0, 0.0, 0.0)

    def interrupt(self, what: str) -> None:
        """Notes that this step holds something else: ``pass`` or ``mode``."""
        self._held.add(what)

    def holds_each(self, what: str) -> bool:
        """Whether each step holds it."""
        return what in self._recurring

    def end(self, now: float, *, is_warming: bool) -> float | None:
        """Counts a step that has just ended.

        Args:
            now: The time.
            is_warming: Whether to learn from this step what each step holds.

        Returns:
            Its seconds; None if it holds something else.
        """
        self.count += 1
        last, self._last = self._last, now
        held, self._held = self._held - self._recurring, set()
        if is_warming:
            self._recent.append(held)
            if len(self._recent) == WARM_STEPS and all(self._recent):  # else the search would never begin
                self._recurring |= set.intersection(*self._recent) or set.union(*self._recent)
                self._recent.clear()
        if held or last is None:
            return None
        self.trained += now - last
        return now - last

    def skip(self, seconds: float) -> None:
        """Leaves seconds out of the current step."""
        self._last = None if self._last is None else self._last + seconds

    def resume(self, now: float) -> None:
        """Begins the next step: what has happened since the last one ended is no part of it."""
        self._last = now

    def follow(self, seconds: float, weight: float) -> None:
        """Moves the usual length of a step towards these seconds, of which a stall counts in part."""
        self.usual += weight * (min(seconds, ODD_TIMES * self.usual) - self.usual) if self.usual else seconds

    @property
    def odd_seconds(self) -> float:
        """A longer step holds something else."""
        return max(ODD_TIMES * self.usual, self.usual + ODD_SECONDS)

    def mark_end(self) -> None:
        """Marks the end of a step, for `script_seconds` of the next one."""
        self._marks = [self.clock.mark()]

    def mark_draw(self) -> None:
        """Marks where the script draws its next batch."""
        if len(self._marks) == 1:
            self._marks.append(self.clock.mark())

    def unmark(self) -> None:
        """Drops both marks: what lies between them may be no doing of the script's."""
        self._marks = []

    def script_seconds(self, seconds: float, *, sees_draws: bool) -> float:
        """Seconds that the script spent between the step before and its draw, if they exceed four usual steps.

        Args:
            seconds: Of the whole step.
            sees_draws: Whether the loader is known. If not, a step that holds something else counts as a whole.
        """
        if seconds <= ODD_TIMES * self.usual or not self._marks:
            return 0.0
        if len(self._marks) == 1:
            return seconds - self.usual if not sees_draws and seconds > self.odd_seconds else 0.0
        self.clock.synchronize()
        own = min(self.clock.seconds(*self._marks), seconds - self.usual)
        return own if own > (ODD_TIMES - 1) * self.usual else 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time trained that was spent waiting for data."""
        return min(1.0, self.waited / self.trained) if self.trained else 0.0

    def pace(self) -> dict[str, float]:
        """Steps per second and the share of waiting since the last call; empty where nothing was trained."""
        count, trained, waited = self._paced
        self._paced = self.count, self.trained, self.waited
        seconds = self.trained - trained
        if not seconds:
            return {}
        share = min(1.0, (self.waited - waited) / seconds)
        return {"steps_per_second": (self.count - count) / seconds, "wait_share": share}
