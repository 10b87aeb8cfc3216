"""Plays a recorded surface back: bursts on a virtual clock that charges what they really cost."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from autotune.bursts.hosts.protocol import BurstPlan, Part
from autotune.bursts.turns.duet import LEAST_TURNS, TURN_SECONDS
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.constraints import at_most
from autotune.knobs.context import Choices
from autotune.knobs.space import Space, build_space
from autotune.measuring.pairs import Pair, pair_of
from autotune.measuring.ratios import Scatter
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point, pool
from autotune.search.costs import shares_host
from benchmarks.surfaces import GRIDS, Record, Surface, compute_part, graph_of, loader_part

FIRST_STEPS = 3
"""That a config takes in a host before its first block counts."""
HOST_SPREAD = 0.015
"""Of the logarithm of a config's speed, from host to host: what fresh processes confirmed of switched configs."""
LOADER_SECONDS = 0.3
"""Of starting a loader's workers, where the recording crossed no epoch's end, which would tell."""


class VirtualClock:
    """Seconds that pass only when a burst spends them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


@dataclasses.dataclass(frozen=True)
class RecordedSpace(Space):
    """A space that ends where the recording does: what was not recorded stands for the nearest config that was.

    The nearest differs in the fewest knobs, and of those in the allocator, whose state is the host's and not the
    config's, else in the ones of the least expected effect.

    Attributes:
        recorded: All configs of the recording.
    """

    recorded: frozenset[TrainConfig] = frozenset()

    def config(self, values: Mapping[str, Scalar]) -> TrainConfig:
        """The recorded candidate that is nearest to one with these values."""
        return self._nearest(super().config(values), self.recorded)

    def changed(self, config: TrainConfig, values: Mapping[str, Scalar]) -> TrainConfig:
        """The recorded candidate that has these values, if there is one, and is nearest to another config else."""
        kept = {knob: getattr(config, knob) for knob in self.choices}
        wanted = super().config(kept | dict(values))
        having = [known for known in self.recorded if all(getattr(known, k) == v for k, v in values.items())]
        return self._nearest(wanted, having or self.recorded)

    def _nearest(self, wanted: TrainConfig, among: Collection[TrainConfig]) -> TrainConfig:
        """Of some recorded configs the nearest to a config."""
        if wanted in among:
            return wanted

        def distance(known: TrainConfig) -> tuple[object, ...]:
            differing = [
                -position
                for position, knob in enumerate(self.choices)
                if knob != "allocator" and getattr(known, knob) != getattr(wanted, knob)
            ]
            return len(differing) + (known.allocator != wanted.allocator) / 2, differing, repr(known)

        return min(among, key=distance)

    def violation(self, config: TrainConfig) -> str | None:
        """Why a config must not be run, in one sentence, or None when it may."""
        return super().violation(config) if config in self.recorded else "it was not recorded"


def recorded_space(surface: Surface, budget_seconds: float) -> RecordedSpace:
    """What the product would search on the recorded machine, as far as it was recorded."""
    knobs = GRIDS[surface.header.name].knobs
    facts = surface.header.facts
    space = build_space(
        surface.header.hardware,
        facts,
        device="cpu",
        effective_batch=facts.baseline.effective_batch,
        only=list(knobs),
        pinned={"num_workers": at_most(max(surface.header.hardware.cpu.budget, facts.baseline.num_workers))},
        budget_seconds=budget_seconds,
    )
    choices = {
        knob: Choices(tuple(value for value in choice.values if value in knobs[knob]), choice.reason)
        for knob, choice in space.choices.items()
    }
    fields = {field.name: getattr(space, field.name) for field in dataclasses.fields(Space)}
    return RecordedSpace(
        **fields
        | {
            "choices": {knob: choice for knob, choice in choices.items() if len(choice.values) > 1},
            "preferred": {k: v for k, v in space.preferred.items() if k in choices and v in choices[k].values},
            "recorded": frozenset(true_rates(surface)),
        }
    )


def true_rates(surface: Surface) -> dict[TrainConfig, float]:
    """Samples per second of every config: the baseline's times the mean ratio to it; 0 where it failed."""
    levels: dict[TrainConfig, list[float]] = {}
    for record in surface.records:
        if record.part == "all":
            levels.setdefault(record.burst.point.config, []).extend(record.levels() if record.burst.ok else [])
    reference = reference_rate(surface)
    return {config: reference * math.exp(statistics.fmean(of)) if of else 0.0 for config, of in levels.items()}


def reference_rate(surface: Surface) -> float:
    """Samples per second of the baseline, in all its blocks."""
    baseline = surface.header.facts.baseline
    own = [record for record in surface.records if record.part == "all" and record.burst.point.config == baseline]
    measured = [record.burst.measurement for record in own if record.burst.measurement is not None]
    return pool(measured).samples_per_second


@dataclasses.dataclass
class _Entrant:
    """A candidate of a challenge: its process, what it has cost, and its blocks, as logarithms over the baseline."""

    point: Point
    record: Record
    seconds: float
    step_seconds: float = 0.0
    compile_seconds: float = 0.0
    drawn: list[float] = dataclasses.field(default_factory=list)
    pair: Pair | None = None

    @functools.cached_property
    def scatter(self) -> list[float]:
        """By how much each recorded block was off its process; the seconds of all add up to those of the whole."""
        levels = self.record.levels()
        whole = -math.log(statistics.fmean(math.exp(-level) for level in levels))
        return [level - whole for level in levels]

    def blocks(self, against: float) -> tuple[list[float], list[float]]:
        """Seconds of the incumbent's blocks and its own, in units of the incumbent's."""
        return [1.0] * len(self.drawn), [math.exp(against - one) for one in self.drawn]


def in_host(config: TrainConfig, records: Collection[tuple[TrainConfig, Part]]) -> TrainConfig:
    """What was recorded of a config under malloc's settings, as hosts run; where that was not, the config itself."""
    tuned = config.replace(allocator="tuned")
    return tuned if (tuned, "all") in records else config


class Playback:
    """A `Runner` over a surface.

    A burst is one of the recorded processes of its config, drawn at random, and its blocks are drawn from that
    process's, with replacement: the noise between processes and within them persists. Sides of a duet are as fast as
    they were in turn with the baseline; a burst alone is as fast as it was then, with all that the machine did.

    Args:
        surface: What was recorded.
        clock: Is moved on by what each burst costs.
        seed: Of what is drawn.
    """

    def __init__(self, surface: Surface, clock: VirtualClock, seed: int) -> None:
        self.clock = clock
        self.ran: list[tuple[float, Burst, Part]] = []
        self._baseline = surface.header.facts.baseline
        self._rng = random.Random(seed)
        self._records: dict[tuple[TrainConfig, Part], list[Record]] = defaultdict(list)
        self._compiling: dict[tuple[Scalar, ...], list[tuple[bool, float]]] = defaultdict(list)
        self._living: dict[Point, float] = {}
        self._reference = reference_rate(surface)
        self._scatter = Scatter()
        self._compiled: set[tuple[Scalar, ...]] = set()
        for record in surface.records:
            config = record.burst.point.config
            self._records[config, record.part].append(record)
            if (graph := graph_of(config)) is not None and record.part != "loader":
                self._compiling[graph].append((record.cold, _compile_seconds(record.burst.measurement)))

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """The burst of a point, and what it costs on the clock; never more than the deadline.

        Raises:
            KeyError: The point was not recorded.
        """
        part = plan.part
        config = {
            "all": point.config,
            "compute": compute_part(point.config),
            "loader": loader_part(point.config, self._baseline),
        }[part]
        record = self._rng.choice(self._records[config, part])
        measured = self._resampled(record.burst.measurement)
        seconds = record.burst.seconds + self._compile_difference(record)
        burst = record.burst.model_copy(update={"point": point, "measurement": measured, "seconds": seconds})
        if seconds > deadline_seconds:
            burst = Burst(point=point, outcome=Outcome.TIMEOUT, reason="too slow", seconds=deadline_seconds)
        self._pass(burst, part)
        return burst

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """A recorded process of each point, side by side: blocks scatter as they did in turn with the baseline."""
        deadline = self.clock.now + deadline_seconds
        bursts = []
        for point in points:
            record = self._rng.choice(self._records[point.config, "all"])
            seconds = self._start_seconds(record) + plan.measure_seconds
            if record.burst.measurement is None or seconds > deadline - self.clock.now:
                bursts.append(self._told(point, record, deadline - self.clock.now))
                continue
            turns = max(LEAST_TURNS, round(plan.measure_seconds / self._turn_seconds(plan)))
            blocks = self._blocks(self._rng.choices(record.levels(), k=turns), self._turn_seconds(plan))
            bursts.append(self._played(point, record, blocks, seconds))
        return bursts

    def challenge(
        self,
        incumbent: Point | None,
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        on_pair: Callable[[Point, Pair], None],
    ) -> list[tuple[Burst, Pair | None]]:
        """Recorded processes of the candidates against the incumbent's, which stays the same while it is the incumbent.

        All play as in one host: with malloc's settings, whatever their allocator, where that was recorded; and as fast
        as their recorded processes were on the whole, since what tells processes apart is the host's, for all alike.
        Each of the candidate's blocks scatters as one of a recorded process did, in turn with the baseline.

        What is charged: three steps at the recorded rate, the start of a loader with workers, the first compile of a
        graph as it was recorded (later ones are free), for each block a step that leads in, and to each an equal share
        of the incumbent's blocks. What needs a process of its own costs its recorded start, compiling included, as do
        all where there is no incumbent yet.
        """
        joins = incumbent is not None
        against = self._level_of(incumbent) if incumbent is not None else None
        entrants = [self._entrant(point, incumbent) for point in candidates]
        turn, spent = self._turn_seconds(plan), sum(one.seconds for one in entrants)
        playing = [one for one in entrants if one.record.burst.measurement is not None]
        own = self._own_step_seconds(incumbent)
        for _ in range(max(1, round(plan.measure_seconds / turn))):
            if not playing or spent >= deadline_seconds:
                break
            share = (turn + own) / len(playing) if joins else 0.0
            for one in tuple(playing):
                one.drawn.append(self._level_of(one.point) + self._rng.choice(one.scatter))
                one.seconds += turn + share + (one.step_seconds if joins else 0.0)
                spent += turn + share + (one.step_seconds if joins else 0.0)
                if incumbent is not None and against is not None:
                    one.pair = pair_of(incumbent, *one.blocks(against), self._scatter)
                    if one.pair is not None:
                        on_pair(one.point, one.pair)
                        if one.pair.decided and plan.fastest_wins:
                            playing.remove(one)
        for one in entrants:
            if against is not None and one.drawn:
                self._scatter.add(*one.blocks(against))
        self.clock.now += min(spent, max(deadline_seconds, 0.0)) if not all(one.drawn for one in entrants) else spent
        return [(self._challenged(one, turn, deadline_seconds), one.pair) for one in entrants]

    def _challenged(self, one: _Entrant, turn: float, deadline_seconds: float) -> Burst:
        """How an entrant ended; the time has passed already."""
        measured = one.record.burst.measurement
        if measured is None:
            burst = one.record.burst.model_copy(update={"point": one.point, "seconds": one.seconds})
        elif not one.drawn:
            burst = Burst(point=one.point, outcome=Outcome.TIMEOUT, reason="too slow", seconds=deadline_seconds)
        else:
            wait = measured.data_wait_fraction
            blocks = self._blocks(one.drawn, turn, wait)
            changed = {"blocks": blocks, "telemetry": None, "compile_seconds": one.compile_seconds or None}
            measured = measured.model_copy(update=changed)
            burst = one.record.burst.model_copy(
                update={"point": one.point, "measurement": measured, "seconds": one.seconds}
            )
        self.ran.append((self.clock.now, burst, "all"))
        return burst

    def close(self) -> None:
        """Hosts end: other processes are drawn when they are needed again."""
        self._living.clear()

    def _level_of(self, point: Point) -> float:
        """How a point does in the host that lives, over the baseline, as a logarithm."""
        if point not in self._living:
            records = self._records[in_host(point.config, self._records), "all"]
            known = [level for record in records if record.burst.ok for level in record.levels()]
            self._living[point] = statistics.fmean(known) + self._rng.gauss(0, HOST_SPREAD)
        return self._living[point]

    def _entrant(self, point: Point, incumbent: Point | None) -> _Entrant:
        """A candidate, and what it takes until it has begun."""
        record = self._rng.choice(self._records[in_host(point.config, self._records), "all"])
        measured = record.burst.measurement
        if measured is None:
            return _Entrant(point, record, record.burst.seconds)
        compiling, step = self._compiling_in_host(point.config), self._step_seconds(record)
        if incumbent is not None and shares_host(point, incumbent, "cpu"):
            loader = (measured.epoch_boundary_seconds or LOADER_SECONDS) if point.config.num_workers else 0.0
            start = loader + FIRST_STEPS * point.config.effective_batch / measured.samples_per_second
        else:
            start = record.burst.seconds - measured.measure_seconds - _compile_seconds(measured)
        return _Entrant(point, record, start + compiling, step, compiling)

    def _compiling_in_host(self, config: TrainConfig) -> float:
        """What a graph costs to compile: nothing where the host has compiled it before."""
        graph = graph_of(config)
        if graph is None or graph in self._compiled:
            return 0.0
        self._compiled.add(graph)
        cold = [seconds for first, seconds in self._compiling[graph] if first]
        return statistics.fmean(cold or [seconds for _, seconds in self._compiling[graph]])

    def _step_seconds(self, record: Record) -> float:
        """Of a micro-step, which leads in to a block."""
        measured = record.burst.measurement
        return record.burst.point.config.micro_batch / measured.samples_per_second if measured is not None else 0.0

    def _own_step_seconds(self, incumbent: Point | None) -> float:
        return self._step_seconds(self._records[incumbent.config, "all"][0]) if incumbent is not None else 0.0

    def _blocks(self, levels: Sequence[float], turn_seconds: float, wait: float = 0.0) -> tuple[Block, ...]:
        """Blocks of as many samples each, at these speeds over the baseline."""
        samples = max(1, round(self._reference * turn_seconds))
        usual = samples / self._reference
        return tuple(
            Block(samples=samples, seconds=seconds, data_wait_seconds=wait * seconds)
            for seconds in (usual * math.exp(-level) for level in levels)
        )

    def _played(self, point: Point, record: Record, blocks: tuple[Block, ...], seconds: float) -> Burst:
        """A burst of these blocks, which ended well."""
        assert record.burst.measurement is not None
        measured = record.burst.measurement.model_copy(update={"blocks": blocks, "telemetry": None})
        burst = record.burst.model_copy(update={"point": point, "measurement": measured, "seconds": seconds})
        self._pass(burst, "all")
        return burst

    def _start_seconds(self, record: Record) -> float:
        """What it takes until a process of a record is warm, compiling included, should that be needed now."""
        measured = record.burst.measurement
        if measured is None:
            return record.burst.seconds
        return record.burst.seconds - measured.measure_seconds + self._compile_difference(record)

    @staticmethod
    def _turn_seconds(plan: BurstPlan) -> float:
        return plan.turn_seconds or TURN_SECONDS

    def _told(self, point: Point, record: Record, deadline_seconds: float) -> Burst:
        """A burst that failed, as it was recorded, or that would end too late."""
        burst = record.burst.model_copy(update={"point": point})
        if burst.ok or burst.seconds > deadline_seconds:
            burst = Burst(point=point, outcome=Outcome.TIMEOUT, reason="too slow", seconds=deadline_seconds)
        self._pass(burst, "all")
        return burst

    def _pass(self, burst: Burst, part: Part) -> None:
        """Lets the time pass that a burst took, and remembers it."""
        self.clock.now += burst.seconds
        self.ran.append((self.clock.now, burst, part))

    def _resampled(self, measured: Measurement | None) -> Measurement | None:
        if measured is None:
            return None
        blocks = tuple(self._rng.choices(measured.blocks, k=len(measured.blocks)))
        return measured.model_copy(update={"blocks": blocks, "telemetry": None})

    def _compile_difference(self, record: Record) -> float:
        """What the graph costs to compile now, the first time or again, over what it cost when this was recorded."""
        graph = graph_of(record.burst.point.config)
        if graph is None or record.part == "loader":
            return 0.0
        first = graph not in self._compiled
        self._compiled.add(graph)
        alike = [seconds for cold, seconds in self._compiling[graph] if cold == first]
        known = alike or [seconds for _, seconds in self._compiling[graph]]
        return statistics.fmean(known) - _compile_seconds(record.burst.measurement)


def _compile_seconds(measured: Measurement | None) -> float:
    return (measured.compile_seconds or 0.0) if measured is not None else 0.0


def optimum(rates: dict[TrainConfig, float]) -> float:
    """The highest rate."""
    return max(rates.values())


def mean_cost(surface: Surface, part: Part = "all") -> float:
    """Seconds of an average burst."""
    costs: Sequence[float] = [record.burst.seconds for record in surface.records if record.part == part]
    return statistics.fmean(costs)
