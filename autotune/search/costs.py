"""Estimates what a config costs from the trials so far: seconds to start, to compile, and to train each sample."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.turns.duet import LEAST_LONG_TURNS, LEAST_TURNS, LONGEST_BLOCK, ROUND_WARMUP_SHARE
from autotune.hardware import DeviceKind
from autotune.knobs import Scalar, TrainConfig, affecting
from autotune.knobs.compiling import compile_seconds
from autotune.measuring import FEWEST_STEPS, MOST_STEPS, Burst, MemoryModel, Point
from autotune.measuring.pairs import LEAST_BLOCKS
from autotune.results.result import CONFIRM
from autotune.search.stopping import Budget
from autotune.search.trials import Trial

START_SECONDS = 2.25
"""The estimate for starting a process before the first one has started."""
OPENING_STEPS = 3
"""Steps of a config before its first block: one shows that it trains, one shows its speed, one leads in."""
STEPS_OF_BLOCK = 2
"""Steps of the shortest block: one leads in, one is timed."""
INCUMBENTS_PART = 1.5
"""The blocks of a turn, over those of its challengers: the incumbent plays as many as each. Of two challengers."""
CACHE_SAVES = 0.7
"""The least share of compiling that a cache saves once another process has compiled the same code. 0.8 to 0.9 were
measured on a CPU."""
GENEROUS, LEAST_DEADLINE_SECONDS = 5.0, 9.0
"""A deadline is this many times the expected seconds, and at least this many seconds for each config: a hang must not
eat the budget. Not tuned."""
NUMERICS_SHARE, NUMERICS_MAX_SECONDS = 0.05, 30.0
"""The share of the budget for checking numerics, and its most seconds. Not tuned."""


@dataclass(frozen=True)
class Cost:
    """What a config costs in a process of its own."""

    start_seconds: float  # until its first block, without compiling
    compile_seconds: float  # 0 if it compiles nothing
    sample_seconds: float  # to train one sample


@dataclass(frozen=True)
class _Seen:
    """The costs that some trials have shown; None or 0 if none ended well."""

    start_seconds: float | None
    joined_seconds: float | None
    codes: frozenset[tuple[Scalar, ...]]
    compiler_slowness: float
    sample_seconds: Mapping[Point, float]
    usual_sample_seconds: float
    memory: MemoryModel | None


class Costs:
    """The one model of cost: what a config takes to start, to compile, and to train a sample.

    Args:
        trials: All trials; the list grows.
        plan: Of a challenge.
        round_plans: For each stage that plays rounds.
        memory_limit_bytes: None if there is no memory target.
        reading_seconds: To read the whole data set.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        plan: BurstPlan,
        device: DeviceKind = "cpu",
        round_plans: Mapping[str, BurstPlan] = {},
        memory_limit_bytes: int | None = None,
        reading_seconds: float = 0.0,
    ) -> None:
        self._trials = trials
        self._plan = plan
        self._device = device
        self._round_plans = round_plans
        self._memory_limit_bytes = memory_limit_bytes
        self._reading_seconds = reading_seconds
        self._cached: tuple[int, _Seen] | None = None

    def __call__(self, point: Point) -> Cost:
        """What a point costs in a process of its own."""
        seen, config = self._seen(), point.config
        compiling = (1 - CACHE_SAVES if self.is_compiled(config) else 1.0) * self._first_compile_seconds(config)
        start = START_SECONDS if seen.start_seconds is None else seen.start_seconds
        pace = seen.sample_seconds.get(point, seen.usual_sample_seconds)
        return Cost(start + self._placing_seconds(config), compiling, pace)

    @property
    def memory(self) -> MemoryModel | None:
        """The memory model; None without a memory target."""
        return self._seen().memory

    @property
    def knows_challenges(self) -> bool:
        """Whether a challenge has shown what one takes."""
        return self._seen().joined_seconds is not None

    def runs_alone_first(self, point: Point) -> bool:
        """Whether a point trains in a process of its own before it joins others.

        On a CPU, running out of memory ends a process with all its players.
        """
        return self._device == "cpu" and self.memory is not None and self.memory.is_near_limit(point)

    def shares_host(self, point: Point, other: Point) -> bool:
        """Whether one live process can play both at once."""
        return shares_host(point, other, self._device) and not self.runs_alone_first(point)

    def is_compiled(self, config: TrainConfig) -> bool:
        """Whether a config is eager, or its code has been compiled before."""
        return not config.is_compiled or _code(config) in self._seen().codes

    def challenge_seconds(self, point: Point, partner: Point | None) -> float:
        """Seconds that a challenge of a partner costs a candidate: first steps, blocks, and a start if needed.

        A candidate that joins a host still reads the data set that it places, unless its partner has placed it alike.
        """
        cost = self(point)
        joins = partner is not None and self.shares_host(point, partner)
        step = point.config.effective_batch * cost.sample_seconds
        timed = max(self._plan.measure_seconds, INCUMBENTS_PART * STEPS_OF_BLOCK * LEAST_BLOCKS * step)
        usual = self._seen().joined_seconds or OPENING_STEPS * step + timed
        there = joins and self.is_compiled(point.config)
        if partner is not None and self.runs_alone_first(point):
            usual += self.fresh_seconds(point, self._plan)
        starting = self._placing_seconds(point.config, partner) if joins else cost.start_seconds
        return usual + (0.0 if there else cost.compile_seconds) + starting

    def start_seconds(self, burst: Burst, stage: str = CONFIRM) -> float:
        """Seconds that a side of a round took before its warm-up, and at its end.

        Where steps are long, it was timed for longer than planned, but not warmed up for longer.
        """
        timed = burst.measurement.measure_seconds if burst.measurement is not None else 0.0
        return max(0.0, burst.seconds - timed - ROUND_WARMUP_SHARE * min(timed, self._timed_seconds(stage)))

    def round_seconds(self, points: Sequence[Point], stage: str = CONFIRM) -> float:
        """Seconds of a round of these points: as in each point's last round, else from start, compile and steps."""
        batch = max(point.config.micro_batch for point in points)
        read = max(point.config.micro_batch * point.config.num_workers for point in points)
        return sum(self._side_seconds(point, batch, read, stage) for point in points)

    def deadline(self, point: Point, plan: BurstPlan, available: float) -> float:
        """Seconds after which a point's own process is killed; at most those available."""
        return self._deadline([point.config], self.fresh_seconds(point, plan), available)

    def challenge_deadline(self, points: Sequence[Point], partner: Point | None, available: float) -> float:
        """Seconds after which a challenge ends; a first compile may take all that are available."""
        expected = sum(self.challenge_seconds(point, partner) for point in points)
        return self._deadline([point.config for point in points], expected, available)

    def fresh_seconds(self, point: Point, plan: BurstPlan) -> float:
        """Seconds of a burst in a process of its own."""
        cost = self(point)
        return cost.start_seconds + cost.compile_seconds + plan.measure_seconds

    def numerics_steps(self, point: Point, budget: Budget, kept_seconds: float) -> int:
        """Steps that a numerics check of a point can take in its share of the budget; 0 if there is no time for it.

        A check takes more than its share only if that leaves the `kept_seconds` that the confirmation's rounds need.
        """
        step_seconds = self._numerics_step_seconds(point.config)
        if not step_seconds:
            return 0
        share = min(NUMERICS_MAX_SECONDS, NUMERICS_SHARE * budget.seconds)
        compiling = self(point).compile_seconds if self.is_compiled(point.config) else 0.0
        if FEWEST_STEPS * step_seconds + compiling > max(share, budget.confirming_seconds - kept_seconds):
            return 0
        return min(MOST_STEPS, max(FEWEST_STEPS, int(share / step_seconds)))

    def numerics_deadline(self, point: Point, steps: int, available: float) -> float:
        """Seconds after which a numerics check of some steps is killed; at most those available."""
        cost = self(point)
        planned = cost.start_seconds + cost.compile_seconds + steps * self._numerics_step_seconds(point.config)
        return self._deadline([point.config], planned, available)

    def _numerics_step_seconds(self, config: TrainConfig) -> float:
        """Seconds of a step of a numerics check; 0 if no rate is known.

        Each step trains one micro-batch three times, twice about as fast as the baseline.
        """
        rates = [rate for trial in self._trials if (rate := trial.burst.rate)]
        return 3 * config.micro_batch / min(rates[0], statistics.median(rates)) if rates else 0.0

    def _placing_seconds(self, config: TrainConfig, partner: Point | None = None) -> float:
        """Seconds in which a config reads the data set that it places; none beside a partner that places it alike."""
        placed = config.data_placement
        is_there = placed == "loader" or (partner is not None and placed == partner.config.data_placement)
        return 0.0 if is_there else self._reading_seconds

    def _deadline(self, configs: Collection[TrainConfig], expected: float, available: float) -> float:
        nothing_ran = not self._seen().sample_seconds
        if not self._trials or any(not self.is_compiled(config) for config in configs):
            return available
        if nothing_ran:
            return 0.6 * available
        return min(available, max(GENEROUS * expected, LEAST_DEADLINE_SECONDS * len(configs)))

    def _first_compile_seconds(self, config: TrainConfig) -> float:
        """Seconds of a first compile, scaled by how slow the compiler was in the modes seen so far."""
        if not config.is_compiled:
            return 0.0
        return compile_seconds(config) * self._seen().compiler_slowness

    def _side_seconds(self, point: Point, batch: int, read: int, stage: str) -> float:
        """Seconds of one side of a round, whose blocks hold a batch, and what all workers read if that is not long."""
        cost = self(point)
        planned, pace = (1 + ROUND_WARMUP_SHARE) * self._timed_seconds(stage), cost.sample_seconds
        block = max(batch * pace, min(read * pace, LONGEST_BLOCK * planned / LEAST_TURNS))
        long = LEAST_LONG_TURNS * block >= LEAST_TURNS * planned
        turns = LEAST_LONG_TURNS if long else LEAST_TURNS
        played = (trial for trial in reversed(self._trials) if trial.round is not None and trial.burst.point == point)
        last = next(played, None)
        start = cost.start_seconds + cost.compile_seconds if last is None else self.start_seconds(last.burst, stage)
        return start + max(planned, turns * block)

    def _timed_seconds(self, stage: str) -> float:
        """Seconds for which a round of a stage times each side, as planned."""
        return self._round_plans.get(stage, self._plan).measure_seconds

    def _seen(self) -> _Seen:
        """The costs that the trials so far have shown; computed again when there are more."""
        if self._cached is None or self._cached[0] != len(self._trials):
            self._cached = len(self._trials), self._look()
        return self._cached[1]

    def _look(self) -> _Seen:
        fresh: list[float] = []
        joined: list[float] = []
        slowness: list[float] = []
        codes: set[tuple[Scalar, ...]] = set()
        sample_seconds: dict[Point, float] = {}
        limit = self._memory_limit_bytes
        for trial in self._trials:
            point, measured = trial.burst.point, trial.burst.measurement
            config = point.config
            partner = trial.pair.partner if trial.pair is not None else None
            if not trial.burst.ok or measured is None:
                continue
            compiling = measured.compile_seconds or 0.0
            sample_seconds[point] = 1 / measured.samples_per_second
            codes.add(_code(config))
            if measured.compile_seconds is not None and config.is_compiled:
                slowness.append(compiling / compile_seconds(config))
            if not self._has_joined(trial):
                starting = measured.start_seconds + measured.build_seconds + measured.warmup_seconds
                fresh.append(starting - compiling - self._placing_seconds(config))
            elif not config.is_compiled and not self._placing_seconds(config, partner):
                joined.append(trial.burst.seconds)
        return _Seen(
            start_seconds=max(0.0, statistics.median(fresh)) if fresh else None,
            joined_seconds=statistics.median(joined) if joined else None,
            codes=frozenset(codes),
            compiler_slowness=max(slowness, default=1.0),
            sample_seconds=sample_seconds,
            usual_sample_seconds=statistics.median(sample_seconds.values()) if sample_seconds else 0.0,
            memory=MemoryModel((trial.burst for trial in self._trials), limit, self._device) if limit else None,
        )

    def _has_joined(self, trial: Trial) -> bool:
        """Whether a trial joined a live host."""
        pair = trial.pair
        return trial.round is None and pair is not None and shares_host(trial.burst.point, pair.partner, self._device)


def shares_host(point: Point, other: Point, device: DeviceKind) -> bool:
    """Whether one live process can play both; on a CPU, malloc's settings belong to the host, not to a config."""
    return (point.changed({"allocator": other.config.allocator}) if device == "cpu" else point).can_share_process(other)


def _code(config: TrainConfig) -> tuple[Scalar, ...]:
    """The values that decide which code the compiler writes."""
    return config.pick(affecting("compiled code"))
