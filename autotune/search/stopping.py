"""When to stop: the budget is a promise, and time for the confirmation is kept back from it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.bursts.duet import LEAST_TURNS
from autotune.bursts.player import COMPILING_SECONDS
from autotune.bursts.protocol import BurstPlan
from autotune.knobs import TrainConfig, affecting
from autotune.measuring import FEWEST_STEPS, MOST_STEPS, SAMPLES_PER_SECOND, Burst, Objective
from autotune.results.result import ABLATION_MIN_BUDGET_SECONDS
from autotune.search.rounds import MIN_DECIDED_ROUNDS
from autotune.search.stages import SAMPLER
from autotune.search.trials import Trial

FINISHING_SECONDS = 2.0
"""Kept for ending the last process, and for writing the result and its page. Chosen, with room for a slow disk."""
PREPARATION_SHARE, PREPARATION_MIN_SECONDS = 0.5, 4.0
"""Of what remains, for importing and for checking: a big dataset takes its time to open. Chosen."""
CONFIRM_SHARE, CONFIRM_MAX_SECONDS = 0.3, 120.0
ABLATION_SHARE, ABLATION_MAX_SECONDS = 0.15, 90.0
"""Kept back for confirming, and for explaining. Chosen: less would leave short budgets too few rounds to decide."""
PLATEAU_BURSTS, PLATEAU_SHARE, PLATEAU_GAIN = 48, 0.5, 0.01
"""The sampler has nothing more to find when the last half of all bursts, so many at least, raised the best by less.
With a dozen, replayed searches of 120 configs ended after a fifth of the budget, behind random search at its end."""
ENOUGH_CHALLENGES, IDLE_SAMPLES = 25, 10
"""A search that has no time for as many samples is over after so many challenges, when so many samples in a row have
taken nobody's place: what is left of its time narrows the interval of what was found. Of two minutes on the digits 28
samples took half a minute and found nothing, and ± 8 % were left of the claim."""
NUMERICS_SHARE, NUMERICS_MAX_SECONDS = 0.05, 30.0
PROFILE_SHARE, PROFILE_MAX_SECONDS, PROFILE_MIN_BUDGET_SECONDS = 0.07, 20.0, 30.0
"""What checking and profiling may take of the budget. Chosen."""
HOPELESS_BURSTS = 4
"""So many bursts that fail alike, one after the other, end a search in which nothing has worked. Chosen."""
FEWEST_BURSTS = 2 + 2 * MIN_DECIDED_ROUNDS
"""A search that can answer has so many at least: the baseline, a candidate, and rounds of both."""
SHORTEST_ROUND, LONGEST_ROUND, ROUND_SHARE = 0.5, 2.0, 1 / 27
"""Seconds that a side trains in it; and that as a share of the time for all rounds, so that seven of two sides fit: one
of 1 s took 3.7 s on two cores. Of few the interval is wide; but what is young is slow, so that the shortest claim too
little (`bursts.duet.ROUND_WARMUP_SHARE`)."""
COMPILE_SECONDS: Mapping[str, float] = {
    "cudagraphs": 4.0, "blocks": 14.0, "default": 20.0, "loss": 20.0, "reduce-overhead": 20.0,
    "max-autotune-no-cudagraphs": 120.0, "max-autotune": 120.0,
}  # fmt: skip
"""What a first compile is expected to cost before one was seen, and what modes cost beside each other afterwards: CUDA
graphs are recorded in a step or two, and blocks took two thirds of the whole on a CPU
(benchmarks/regional_compile.py). The rest is chosen."""
LONGEST_COMPILE = 6.0
"""A mode's first compile may take so many times what is expected of it, or `COMPILING_SECONDS`. Chosen."""
CACHE_SAVES = 0.7
"""Of the compiling, at least, when the same code has been compiled before: 0.8 to 0.9 were measured on a CPU."""


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
    def preparing_seconds(self) -> float:
        """Seconds that importing, or checking, the user's code may take: some even when a slow machine left none."""
        return max(PREPARATION_MIN_SECONDS, PREPARATION_SHARE * self.remaining)

    @property
    def searching_seconds(self) -> float:
        """Seconds that the search may still take: less what the confirmation and the ablation need; never negative."""
        return max(0.0, self.confirming_seconds - self.rounds_seconds)

    @property
    def searching_seconds_without_gain(self) -> float:
        """The same while nothing faster has been found: what there would be to explain is not kept back."""
        return max(0.0, self.ablating_seconds - self.rounds_seconds)

    @property
    def rounds_seconds(self) -> float:
        """Seconds that are kept back for the rounds of the confirmation."""
        return self._kept(CONFIRM_SHARE, CONFIRM_MAX_SECONDS)

    @property
    def confirming_seconds(self) -> float:
        """Seconds that the confirmation may still take: less what the ablation and profiles need; never negative."""
        return max(0.0, self.ablating_seconds - self.variants_seconds)

    @property
    def variants_seconds(self) -> float:
        """Seconds that are kept back for the rounds of the ablation."""
        return self._kept(ABLATION_SHARE, ABLATION_MAX_SECONDS, ABLATION_MIN_BUDGET_SECONDS)

    @property
    def ablating_seconds(self) -> float:
        """Seconds that the ablation may still take: what remains less what profiles need; never negative."""
        return max(0.0, self.remaining - self._kept(PROFILE_SHARE, PROFILE_MAX_SECONDS, PROFILE_MIN_BUDGET_SECONDS))

    def shortened(self, seconds: float) -> Budget:
        """The same, for what must leave so many seconds for something else."""
        return Budget(max(0.0, self.seconds - seconds), clock=self._clock, started=self._started)

    def _kept(self, share: float, most_seconds: float, least_budget_seconds: float = 0.0) -> float:
        """What is kept back for a part that begins to be worth it with some budget."""
        return min(share * self.seconds, most_seconds) if self.seconds >= least_budget_seconds else 0.0


@dataclass(frozen=True)
class Reserve:
    """What is held back from a budget for a step after the confirmation.

    Attributes:
        share: Of the budget.
        most_seconds: Of it.
        burst_seconds: For a burst, where little else is known.
    """

    share: float
    most_seconds: float
    burst_seconds: float

    def seconds(self, budget_seconds: float) -> float:
        """What is held back of a budget."""
        return min(self.share * budget_seconds, self.most_seconds)

    def deadline(self, budget: Budget) -> float:
        """Seconds that the next burst may take."""
        return max(1.0, min(self.burst_seconds, budget.ablating_seconds))

    @staticmethod
    def is_spent(budget: Budget, plan: BurstPlan) -> bool:
        """Whether there is no time for another challenge."""
        return budget.ablating_seconds <= 3 * plan.measure_seconds


def plan_for(budget_seconds: float, objective: Objective = SAMPLES_PER_SECOND) -> BurstPlan:
    """How long a side trains, so that a short budget still holds some twenty challenges.

    Of an objective that needs longer turns, as many fewer.
    """
    seconds = max(min(4.0, max(0.8, budget_seconds / 90)), LEAST_TURNS * (objective.turn_seconds or 0.0))
    return BurstPlan(
        warmup_seconds=1.25 * seconds,
        measure_seconds=seconds,
        turn_seconds=objective.turn_seconds,
        fastest_wins=objective.follows_rate,
    )


def round_plan(plan: BurstPlan, rounds_seconds: float) -> BurstPlan:
    """How long a side trains in a round that confirms, so that several fit.

    Args:
        plan: Of a challenge.
        rounds_seconds: For all rounds.
    """
    seconds = min(LONGEST_ROUND, max(SHORTEST_ROUND, ROUND_SHARE * rounds_seconds))
    seconds = max(seconds, LEAST_TURNS * (plan.turn_seconds or 0.0))
    warmup_seconds = plan.warmup_seconds * seconds / plan.measure_seconds
    return plan.model_copy(update={"warmup_seconds": warmup_seconds, "measure_seconds": seconds})


def confirming_plan(budget_seconds: float, objective: Objective = SAMPLES_PER_SECOND) -> BurstPlan:
    """How long a side trains in the rounds that confirm a search of so long a budget."""
    return round_plan(plan_for(budget_seconds, objective), Budget(budget_seconds).rounds_seconds)


def ablating_plan(budget_seconds: float, objective: Objective = SAMPLES_PER_SECOND) -> BurstPlan:
    """How long a side trains in the rounds of the ablation, which has less time, and more sides."""
    return round_plan(plan_for(budget_seconds, objective), Budget(budget_seconds).variants_seconds)


def predicted_seconds(config: TrainConfig, trials: Sequence[Trial], plan: BurstPlan) -> float:
    """What a burst of a config will take: the longest of its kind so far, else what the plan allows.

    Each mode of compiling is a kind. One that was not seen yet takes what it is expected to beside those that were.
    """
    compiled = config.compile_mode is not None
    if compiled and (warm := [burst for burst in compiled_alike(config, trials) if burst.ok]):
        cached = warm[0].seconds - CACHE_SAVES * _compile_seconds(warm[:1])
        return min(burst.seconds for burst in warm) if len(warm) > 1 else cached
    alike = [trial.burst.seconds for trial in trials if trial.burst.point.config.compile_mode == config.compile_mode]
    if alike:
        return max(alike) if compiled else max(sorted(alike)[: max(1, len(alike) * 9 // 10)])
    planned = plan.warmup_seconds + plan.measure_seconds
    return planned + (first_compile_seconds(config.compile_mode, trials) if config.compile_mode is not None else 1.0)


def first_compile_seconds(mode: str, trials: Sequence[Trial]) -> float:
    """What compiling takes in a mode for the first time: more or less than usual, as it was in modes that were seen."""
    seen = [
        trial.burst.measurement.compile_seconds / COMPILE_SECONDS[known]
        for trial in trials
        if trial.burst.measurement is not None
        and trial.burst.measurement.compile_seconds
        and (known := trial.burst.point.config.compile_mode) is not None
    ]
    return COMPILE_SECONDS[mode] * max(seen, default=1.0)


def compiled_alike(config: TrainConfig, trials: Sequence[Trial]) -> list[Burst]:
    """Bursts whose compiled code serves a config, out of the cache."""
    code = config.pick(affecting("compiled code"))
    return [trial.burst for trial in trials if trial.burst.point.config.pick(affecting("compiled code")) == code]


def _compile_seconds(bursts: Sequence[Burst]) -> float:
    """What compiling took at most; 0 where nothing was compiled."""
    return max((burst.measurement.compile_seconds or 0.0 for burst in bursts if burst.measurement), default=0.0)


def numerics_steps(config: TrainConfig, trials: Sequence[Trial], budget: Budget, kept_seconds: float) -> int:
    """Steps that a numerics check of a config can take in its share of the budget; 0 when there is no time for it.

    Each step trains one micro-batch three times, two of them about as fast as the baseline. A check takes more than its
    share only where the confirmation's rounds keep the `kept_seconds` that they need.
    """
    rates = [rate for trial in trials if (rate := trial.burst.rate)]
    if not rates:
        return 0
    step_seconds = 3 * config.micro_batch / min(rates[0], statistics.median(rates))
    share = min(NUMERICS_MAX_SECONDS, NUMERICS_SHARE * budget.seconds)
    alike = compiled_alike(config, trials)
    compiling = (1 - CACHE_SAVES) * _compile_seconds(alike)
    if FEWEST_STEPS * step_seconds + compiling > max(share, budget.confirming_seconds - kept_seconds):
        return 0
    return min(MOST_STEPS, max(FEWEST_STEPS, int(share / step_seconds)))


def burst_deadline(config: TrainConfig, trials: Sequence[Trial], plan: BurstPlan, available: float) -> float:
    """Seconds after which a burst is killed, of those available: generous, but a hang must not eat the budget.

    Later bursts are expected to take about as long as the first.
    """
    if not trials:
        return available  # the baseline: without it there is nothing to compare
    finished = [trial.burst.seconds for trial in trials if trial.burst.ok]
    planned = plan.warmup_seconds + plan.measure_seconds
    if config.compile_mode is not None:
        expected = LONGEST_COMPILE * first_compile_seconds(config.compile_mode, trials)
        usual = max(COMPILING_SECONDS, expected, 5 * planned)
    elif finished:
        usual = max(5 * min(finished), 3 * planned + 3.0)
    else:
        usual = 0.6 * available
    return min(usual, available)


def sufficient_budget(prepared_seconds: float, start_seconds: float) -> float:
    """A budget that holds a small search: the baseline, a candidate, and the race of both.

    By what was seen: `prepared_seconds` for all before the first burst, `start_seconds` before a burst's timed part.
    """
    seconds = prepared_seconds
    for _ in range(10):  # a longer budget also has longer bursts: this settles
        plan = plan_for(seconds)
        burst = start_seconds + plan.warmup_seconds + plan.measure_seconds
        seconds = prepared_seconds + FINISHING_SECONDS + FEWEST_BURSTS * burst
    return 10.0 * math.ceil(seconds / 10)


def all_fail_alike(trials: Sequence[Trial]) -> bool:
    """Whether nothing has worked, and the last few bursts ended by one and the same mistake: the next would too.

    Memory that runs out does not count: smaller batches may fit.
    """
    if len(trials) < HOPELESS_BURSTS or any(trial.burst.ok for trial in trials):
        return False
    last = [trial.burst for trial in trials[-HOPELESS_BURSTS:]]
    return not last[0].outcome.is_memory and len({(burst.outcome, burst.reason) for burst in last}) == 1


def sampled_enough(trials: Sequence[Trial], affordable: float) -> bool:
    """Whether the sampler, which has time for so many samples more, is too late for a plateau, and finds nothing."""
    challenges = [trial for trial in trials if trial.round is None]
    sampled = [trial for trial in challenges if trial.stage == SAMPLER]
    idle = not any(trial.pair is not None and trial.pair.promotes for trial in sampled[-IDLE_SAMPLES:])
    is_short = len(sampled) + affordable < PLATEAU_BURSTS
    return is_short and len(challenges) >= ENOUGH_CHALLENGES and len(sampled) >= IDLE_SAMPLES and idle


def plateaued(trials: Sequence[Trial]) -> bool:
    """Whether the sampler has tried as much as was tried before it, and has not raised the best score by a percent."""
    sampled = [trial for trial in trials if trial.stage == SAMPLER]
    patience = max(PLATEAU_BURSTS, round(PLATEAU_SHARE * len(trials)))
    if len(sampled) < patience:
        return False
    recent = {id(trial) for trial in sampled[-patience:]}
    before = max((t.score or 0.0 for t in trials if id(t) not in recent and t.round is None), default=0.0)
    after = max((t.score or 0.0 for t in sampled[-patience:]), default=0.0)
    return after < (1 + PLATEAU_GAIN) * before
