"""When to stop: the budget is a promise, and time for the confirmation is kept back from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autotune.burst.protocol import BurstPlan
from autotune.config import TrainConfig
from autotune.search.stages import SAMPLER
from autotune.search.trials import Trial

FINISHING_SECONDS = 1.0
"""Kept for writing the result and ending the last process."""
CONFIRM_SHARE, CONFIRM_MAX_SECONDS = 0.3, 120.0
PLATEAU_BURSTS, PLATEAU_GAIN = 12, 0.01
HOPELESS_BURSTS = 4
COMPILE_SECONDS = 20.0
"""What a first compile is expected to cost before one was seen."""


class Budget:
    """A wall-clock budget.

    Args:
        seconds: The whole of it.
        clock: Monotonic seconds; replaced where time is the subject of a test, or is virtual.
        started: When it began, on that clock; now when None.
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
        """Seconds that bursts may still take, the finish kept back; never negative."""
        return max(0.0, self.seconds - FINISHING_SECONDS - self.elapsed)

    @property
    def searching(self) -> float:
        """Seconds that the search may still take: what remains less the confirmation's share; never negative."""
        reserve = min(CONFIRM_SHARE * self.seconds, CONFIRM_MAX_SECONDS)
        return max(0.0, self.remaining - reserve)


def plan_for(budget_seconds: float) -> BurstPlan:
    """A burst's caps, so that a short budget still holds some twenty bursts and a long one narrow intervals."""
    cap = min(4.0, max(0.8, budget_seconds / 40))
    return BurstPlan(warmup_seconds=1.25 * cap, measure_seconds=cap)


def predicted_seconds(config: TrainConfig, trials: Sequence[Trial], plan: BurstPlan) -> float:
    """What a burst of a config will take: the longest of its kind so far, else what the plan allows."""
    compiled = config.compile_mode is not None
    alike = [trial.burst.seconds for trial in trials if (trial.burst.point.config.compile_mode is not None) == compiled]
    caps = plan.warmup_seconds + plan.measure_seconds
    if alike:
        return max(alike) if compiled else max(sorted(alike)[: max(1, len(alike) * 9 // 10)])
    return caps + (COMPILE_SECONDS if compiled else 1.0)


def burst_deadline(config: TrainConfig, trials: Sequence[Trial], plan: BurstPlan, available: float) -> float:
    """Seconds after which a burst is killed: generous, but a hang must not eat the budget.

    Args:
        config: What is run.
        trials: Those so far: later bursts are expected to take about as long as the first.
        plan: Its caps.
        available: Seconds that there are at all.
    """
    if not trials:
        return available  # the baseline: without it there is nothing to compare
    finished = [trial.burst.seconds for trial in trials if trial.burst.ok]
    caps = plan.warmup_seconds + plan.measure_seconds
    if config.compile_mode is not None:
        usual = max(120.0, 5 * caps)
    elif finished:
        usual = max(5 * min(finished), 3 * caps + 3.0)
    else:
        usual = 0.6 * available
    return min(usual, available)


def all_fail_alike(trials: Sequence[Trial]) -> bool:
    """Whether nothing has worked, and the last few bursts ended by one and the same mistake: the next would too.

    Memory that runs out is none: smaller batches may fit.
    """
    if len(trials) < HOPELESS_BURSTS or any(trial.burst.ok for trial in trials):
        return False
    last = [trial.burst for trial in trials[-HOPELESS_BURSTS:]]
    return not last[0].outcome.is_memory and len({(burst.outcome, burst.reason) for burst in last}) == 1


def plateaued(trials: Sequence[Trial]) -> bool:
    """Whether the sampler's last dozen bursts have not raised the best rate by a percent."""
    sampled = [trial for trial in trials if trial.stage == SAMPLER]
    if len(sampled) < PLATEAU_BURSTS:
        return False
    recent = {id(trial) for trial in sampled[-PLATEAU_BURSTS:]}
    before = max((t.rate or 0.0 for t in trials if id(t) not in recent and t.round is None), default=0.0)
    after = max((t.rate or 0.0 for t in sampled[-PLATEAU_BURSTS:]), default=0.0)
    return after < (1 + PLATEAU_GAIN) * before
