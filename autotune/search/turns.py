"""Points side by side where they can live so, else one after the other: candidates as well as whole rounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import Runner
from autotune.measuring import Burst, Interval, Outcome, Pair, Point

LOST_PARTNERS = 2
"""So many candidates in a row whose partner was gone when they were to play, and memory is taken to be too small for
two: on a CPU the system kills whom it likes. Chosen: one may have died for a reason of its own."""
NO_ROOM = "there is no memory for all sides at once: whole bursts take turns, which is less certain"
NOT_BOTH = "two of it cannot train at once ({}): whole bursts take turns, which is less certain"
APART_ERROR = 0.1
"""What a ratio of two bursts that ran one after the other may be off by, either way: one config's bursts were measured
to differ by as much on a shared machine."""


class Turns:
    """Lets points train in turn.

    Args:
        runner: Runs points side by side, and alone.
        note: Told when whole bursts must take turns.
        seed: Of the order of whole bursts.

    Attributes:
        side_by_side: Whether a candidate can live beside the incumbent, for all that is known.
    """

    def __init__(self, runner: Runner, note: Callable[[str], None], seed: int = 0) -> None:
        self._runner = runner
        self._note = note
        self._rng = random.Random(seed)
        self.side_by_side = True
        self._rounds_fit = True
        self._lost_partners = 0
        self._lived_together = False
        self._alone: dict[Point, float] = {}

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
        if self._rounds_fit and len(points) > 1:
            bursts = self._runner.play(points, plan, min(sum(map(deadline, points)), available))
            if not any(burst.outcome.is_memory for burst in bursts):
                return bursts
            self._tell()
            self._rounds_fit = False
        self._runner.close()
        run = {p: self._runner.run(p, plan, deadline(p)) for p in self._rng.sample(list(points), len(points))}
        return [run[point] for point in points]

    def challenge(
        self,
        incumbent: Point | None,
        candidate: Point,
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Pair], None],
    ) -> tuple[Burst, Pair | None]:
        """A candidate against the incumbent, as `Runner.challenge`; what does not fit beside it runs again alone.

        So does what crashes where no two have lived together yet: a lock, a port or a database may be for one alone.
        """
        if not self.side_by_side:
            return self._apart(incumbent, candidate, plan, deadline_seconds)
        burst, pair = self._runner.challenge(incumbent, candidate, plan, deadline_seconds, told)
        left = deadline_seconds - burst.seconds
        lost_partner = burst.ok and pair is None and left > plan.measure_seconds
        if pair is not None:
            self._lost_partners, self._lived_together = 0, True  # there is room for two
        may_disturb = burst.outcome is Outcome.CRASHED and not self._lived_together
        if incumbent is None or left <= 0 or not (burst.outcome.is_memory or lost_partner or may_disturb):
            return burst, pair
        spent, reason = burst.seconds, burst.reason
        burst, pair = self._apart(incumbent, candidate, plan, left)
        if may_disturb and burst.ok:
            self._note(NOT_BOTH.format(reason))
            self.side_by_side = self._rounds_fit = False
        self._lost_partners += lost_partner
        # What is too large beside the incumbent says nothing of the next, unless that must play against it.
        if (pair is not None and pair.promotes) or self._lost_partners >= LOST_PARTNERS:
            self._tell()
            self.side_by_side = False
        return burst.model_copy(update={"seconds": burst.seconds + spent}), pair

    def _tell(self) -> None:
        """Once, that memory forces whole bursts."""
        if self.side_by_side and self._rounds_fit:
            self._note(NO_ROOM)

    def _apart(
        self, incumbent: Point | None, candidate: Point, plan: BurstPlan, deadline_seconds: float
    ) -> tuple[Burst, Pair | None]:
        """Whole bursts: the candidate's, and the incumbent's where it has had none."""
        self._runner.close()
        burst = self._runner.run(candidate, plan, deadline_seconds)
        rate = burst.rate
        if rate is None:
            return burst, None
        self._alone[candidate] = rate
        if incumbent is not None and incumbent not in self._alone and burst.seconds < deadline_seconds:
            other = self._runner.run(incumbent, plan, deadline_seconds - burst.seconds)
            burst = burst.model_copy(update={"seconds": burst.seconds + other.seconds})
            if other.rate is not None:
                self._alone[incumbent] = other.rate
        if incumbent is None or incumbent not in self._alone:
            return burst, None
        ratio = rate / self._alone[incumbent]
        interval = Interval(ratio * math.exp(-APART_ERROR), ratio * math.exp(APART_ERROR))
        return burst, Pair(partner=incumbent, ratio=ratio, ci95=interval, blocks=0)
