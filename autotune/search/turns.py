"""Rounds of points that train in turn: block by block where memory holds them all, else burst by burst."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import Runner
from autotune.measuring import Burst, Point

NO_ROOM = "there is no memory for all sides at once: whole bursts take turns, which is less certain"


class Turns:
    """Plays rounds.

    Args:
        runner: Runs points side by side, and alone.
        note: Told when memory forces whole bursts.
        seed: Of the order of whole bursts.
    """

    def __init__(self, runner: Runner, note: Callable[[str], None], seed: int = 0) -> None:
        self._runner = runner
        self._note = note
        self._rng = random.Random(seed)
        self._side_by_side = True

    def play(
        self, points: Sequence[Point], plan: BurstPlan, deadline: Callable[[Point], float], available: float
    ) -> list[Burst]:
        """One round: a fresh process for each point, and one burst each, in the order of the points.

        Memory that runs out beside others says nothing about a point alone: then, and from then on, whole bursts
        alternate.

        Args:
            points: What to run.
            plan: How long each trains.
            deadline: Seconds that a point may take at most.
            available: Seconds that there are for all.
        """
        if self._side_by_side and len(points) > 1:
            bursts = self._runner.play(points, plan, min(sum(map(deadline, points)), available))
            if not any(burst.outcome.is_memory for burst in bursts):
                return bursts
            self._side_by_side = False
            self._note(NO_ROOM)
        run = {p: self._runner.run(p, plan, deadline(p)) for p in self._rng.sample(list(points), len(points))}
        return [run[point] for point in points]
