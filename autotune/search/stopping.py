"""Decides when to stop: divides the budget, and reserves time for the confirmation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.turns.duet import LEAST_TURNS
from autotune.hardware import DeviceKind
from autotune.measuring import SAMPLES_PER_SECOND, Objective
from autotune.search.rounds import MIN_DECIDED_ROUNDS

FINISHING_SECONDS = 2.0
"""Time to end the last process, and to write the result and its page. Not tuned; leaves room for a slow disk."""
PREPARATION_SHARE, PREPARATION_MIN_SECONDS = 0.5, 4.0
"""The share of the remaining budget for importing and checking, and its least seconds, since large data sets open
slowly. Not tuned."""
CONFIRM_SHARE, CONFIRM_MAX_SECONDS = 0.3, 120.0
"""The share of the budget for confirming, and its most seconds. Not tuned; less would leave short budgets too few
rounds to decide."""
PROFILE_SHARE, PROFILE_MAX_SECONDS, PROFILE_MIN_BUDGET_SECONDS = 0.07, 20.0, 30.0
"""The share of the budget for profiling, its most seconds, and the shortest budget with a profile. Not tuned."""
SEARCH_SECONDS, GPU_SEARCH_SECONDS = 0.35, 1.0
"""Seconds for which a challenge times each side. The model learns from all pairs, so numerous short ones teach it more
than a few long ones. In replays of five recorded surfaces with 24 seeds, the choice after the time of 15 bursts reached
on average 0.978 of the best config with 0.35 s, 0.974 with 0.6 s and 0.965 with 1 s. The second value is for GPUs,
whose turns are longer; it is not tuned."""
EXPLAINING_SECONDS = 1.0
"""Seconds for which a side is timed outside the search: a part of training, evaluation, fewer ranks."""
USUAL_BURST_SECONDS = 2.25
"""Seconds of a burst after its start, for an estimate of a sufficient budget. Not tuned."""
FEWEST_BURSTS = 2 + 2 * MIN_DECIDED_ROUNDS
"""The fewest bursts of a search that can answer: the baseline, a candidate, and rounds of both."""
SHORTEST_ROUND, LONGEST_ROUND, ROUND_SHARE = 0.5, 2.0, 1 / 27
"""Least and most seconds that a side trains in a round, and that time as a share of all rounds' time. Seven rounds of
two sides fit: one with 1 s took 3.7 s on two cores. Few rounds give a wide interval; but young processes are slow, so
that short rounds understate gains (`bursts.turns.duet.ROUND_WARMUP_SHARE`)."""
OLD_ENOUGH, MOST_SECONDS = 1.0, 4.0
"""Limits, in seconds, for rounds whose length follows from measurements: young processes are slow. Not tuned."""


class Budget:
    """A wall-clock budget.

    Args:
        seconds: The whole budget.
        clock: Returns monotonic seconds; replaced in tests, and where time is virtual.
        started: When it began, on that clock; None means now.
    """

    def __init__(
        self, seconds: float, *, clock: Callable[[], float] = time.monotonic, started: float | None = None
    ) -> None:
        self.seconds = seconds
        self._clock = clock
        self._started = clock() if started is None else started

    def now(self) -> float:
        """The time on its clock."""
        return self._clock()

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._started

    @property
    def remaining(self) -> float:
        """Seconds that bursts may still take, less those for finishing; never negative."""
        return max(0.0, self.seconds - FINISHING_SECONDS - self.elapsed)

    @property
    def preparing_seconds(self) -> float:
        """Seconds that importing or checking the user's code may take; some even if a slow machine left none."""
        return max(PREPARATION_MIN_SECONDS, PREPARATION_SHARE * self.remaining)

    @property
    def searching_seconds(self) -> float:
        """Seconds that the search may still take, less those for the confirmation; never negative."""
        return max(0.0, self.confirming_seconds - self.rounds_seconds)

    @property
    def rounds_seconds(self) -> float:
        """Seconds reserved for the confirmation."""
        return min(CONFIRM_SHARE * self.seconds, CONFIRM_MAX_SECONDS)

    @property
    def confirming_seconds(self) -> float:
        """Seconds that the confirmation may still take, less those for profiles; never negative."""
        profiles = min(PROFILE_SHARE * self.seconds, PROFILE_MAX_SECONDS)
        return max(0.0, self.remaining - (profiles if self.seconds >= PROFILE_MIN_BUDGET_SECONDS else 0.0))

    def shortened(self, seconds: float) -> Budget:
        """The same budget, less the seconds that something else needs."""
        return Budget(max(0.0, self.seconds - seconds), clock=self._clock, started=self._started)


@dataclass(frozen=True)
class Reserve:
    """Time reserved from a budget for a step after the confirmation."""

    share: float  # of the budget
    most_seconds: float
    burst_seconds: float  # least deadline of a single burst

    def seconds(self, budget_seconds: float) -> float:
        """Seconds to reserve from a budget."""
        return min(self.share * budget_seconds, self.most_seconds)

    def deadline(self, budget: Budget, usual_seconds: float) -> float:
        """Seconds that the next burst may take; `usual_seconds` is the deadline of a burst of training."""
        return max(1.0, min(max(self.burst_seconds, usual_seconds), budget.confirming_seconds))

    @staticmethod
    def is_spent(budget: Budget, plan: BurstPlan) -> bool:
        """Whether there is no time for another challenge."""
        return budget.confirming_seconds <= 3 * plan.measure_seconds


def plan_for(objective: Objective = SAMPLES_PER_SECOND, device: DeviceKind = "cpu") -> BurstPlan:
    """The plan of a challenge: sides train longer for an objective that needs longer turns."""
    usual = SEARCH_SECONDS if device == "cpu" else GPU_SEARCH_SECONDS
    return BurstPlan(
        measure_seconds=max(usual, LEAST_TURNS * (objective.turn_seconds or 0.0)),
        turn_seconds=objective.turn_seconds,
        fastest_wins=objective.is_rate,
    )


def round_plan(plan: BurstPlan, rounds_seconds: float) -> BurstPlan:
    """The plan of a confirmation round, short enough for several rounds to fit.

    Args:
        plan: The plan of a challenge.
        rounds_seconds: The time for all rounds.
    """
    return timed_for(plan, min(LONGEST_ROUND, max(SHORTEST_ROUND, ROUND_SHARE * rounds_seconds)))


def timed_for(plan: BurstPlan, seconds: float) -> BurstPlan:
    """The same plan with each side timed for `seconds`, or for `LEAST_TURNS` turns if they take longer."""
    return plan.model_copy(update={"measure_seconds": max(seconds, LEAST_TURNS * (plan.turn_seconds or 0.0))})


def confirming_plan(budget_seconds: float, objective: Objective = SAMPLES_PER_SECOND) -> BurstPlan:
    """The plan of a confirmation round, for a budget in seconds."""
    return round_plan(plan_for(objective), Budget(budget_seconds).rounds_seconds)


def sufficient_budget(prepared_seconds: float, start_seconds: float) -> float:
    """A budget that holds a small search: the baseline, a candidate, and the race of both.

    It follows from measured times: `prepared_seconds` before the first burst, `start_seconds` before a burst is timed.
    """
    seconds = prepared_seconds + FINISHING_SECONDS + FEWEST_BURSTS * (start_seconds + USUAL_BURST_SECONDS)
    return 10.0 * math.ceil(seconds / 10)
