"""Points in turn where they can live side by side, else one after the other: candidates as well as whole rounds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import Runner
from autotune.hardware import DeviceKind
from autotune.knobs import can_share_process
from autotune.measuring import Burst, Interval, Outcome, Pair, Point

NO_ROOM = "there is no memory for all sides at once: whole bursts take turns, which is less certain"
APART_ERROR = 0.1
"""What a ratio of two bursts that ran one after the other may be off by, either way: one config's bursts were measured
to differ by as much on a shared machine."""

Played = tuple[Burst, Pair | None]
"""A candidate's burst, and its speed over the incumbent's; None where too little was seen of that."""


class Turns:
    """Lets points train in turn.

    Args:
        runner: Runs points side by side, and alone.
        note: Told when whole bursts must take turns.
        runs_alone_first: Whether a candidate may come near the memory target.
        seed: Of the order of whole bursts.
        device: The kind of device; None where it makes no difference.
    """

    def __init__(
        self,
        runner: Runner,
        note: Callable[[str], None],
        runs_alone_first: Callable[[Point], bool] = lambda _: False,
        seed: int = 0,
        device: DeviceKind | None = None,
    ) -> None:
        self._runner = runner
        self._device = device
        self._note = note
        self._runs_alone_first = runs_alone_first
        self._rng = random.Random(seed)
        self._rounds_fit = True
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
            self._note(NO_ROOM)
            self._rounds_fit = False
        self._runner.close()
        run = {p: self._runner.run(p, plan, deadline(p)) for p in self._rng.sample(list(points), len(points))}
        return [run[point] for point in points]

    def challenge(
        self,
        incumbent: Point | None,
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Point, Pair], None],
    ) -> list[Played]:
        """Candidates against the incumbent, as `Runner.challenge`.

        One that may come near the memory target trains in a process of its own first, while nothing else lives: only
        what does not run out of memory there joins the incumbent. One that needs a process of its own, and ran out of
        memory or crashed beside the incumbent's, runs again alone: there may be no room for two, and a lock, a port or
        a database may be for one. On a CPU so does what ran out of memory in the incumbent's process: a heap that
        several share was seen to hold four times what the largest step takes.
        """
        if incumbent is None:
            return self._runner.challenge(None, candidates, plan, deadline_seconds, told)
        alone: dict[Point, Burst] = {}
        for point in filter(self._runs_alone_first, candidates):
            self._runner.close()  # its memory is needed
            alone[point] = self._runner.run(point, plan, deadline_seconds)
            deadline_seconds -= alone[point].seconds
        joining = [point for point in candidates if point not in alone or alone[point].ok]
        played = self._runner.challenge(incumbent, joining, plan, deadline_seconds, told) if joining else []
        seconds_left = deadline_seconds - sum(burst.seconds for burst, _ in played)
        outcomes: dict[Point, Played] = {point: (burst, None) for point, burst in alone.items()}
        for burst, pair in played:
            before = alone[burst.point].seconds if burst.point in alone else 0.0
            came = burst.model_copy(update={"seconds": before + burst.seconds})
            too_close = seconds_left > 0 and self._may_be_too_close(burst, incumbent)
            outcomes[burst.point] = self._apart(incumbent, came, plan, seconds_left) if too_close else (came, pair)
        return [outcomes[point] for point in candidates]

    def _may_be_too_close(self, burst: Burst, incumbent: Point) -> bool:
        """Whether a neighbour may be why a burst failed: on a CPU, all players of a process share its memory."""
        apart = not shares_host(burst.point, incumbent, self._device)
        if burst.outcome.is_memory:
            return apart or self._device == "cpu"
        return apart and burst.outcome is Outcome.CRASHED

    def _apart(self, incumbent: Point, failed: Burst, plan: BurstPlan, deadline_seconds: float) -> Played:
        """Whole bursts: the candidate's, and the incumbent's where it has had none."""
        self._runner.close()
        began = failed.seconds
        burst = self._runner.run(failed.point, plan, deadline_seconds)
        spent = began + burst.seconds
        if burst.rate is not None and incumbent not in self._alone and burst.seconds < deadline_seconds:
            other = self._runner.run(incumbent, plan, deadline_seconds - burst.seconds)
            spent += other.seconds
            if other.rate is not None:
                self._alone[incumbent] = other.rate
        rate, burst = burst.rate, burst.model_copy(update={"seconds": spent})
        if rate is None or incumbent not in self._alone:
            return burst, None
        self._alone[burst.point] = rate
        return burst, pair_apart(incumbent, rate / self._alone[incumbent])


def pair_apart(partner: Point, ratio: float) -> Pair:
    """What two bursts that ran one after the other say."""
    interval = Interval(ratio * math.exp(-APART_ERROR), ratio * math.exp(APART_ERROR))
    return Pair(partner=partner, ratio=ratio, ci95=interval, blocks=0)


def shares_host(point: Point, other: Point, device: DeviceKind | None = None) -> bool:
    """Whether one live process can play both; on a CPU, malloc's settings are the host's, whatever configs say."""
    config = point.config.replace(allocator=other.config.allocator) if device == "cpu" else point.config
    return point.parameters == other.parameters and can_share_process(config, other.config)
