"""Plays a recorded surface back: bursts on a virtual clock that charges what they really cost."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from autotune.bursts.duet import LEAST_TURNS, TURN_SECONDS
from autotune.bursts.protocol import BurstPlan, Part
from autotune.knobs.circumstances import Choices
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.space import Space, build_space
from autotune.measuring.pairs import Pair, pair_of
from autotune.measuring.ratios import Scatter
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point, pool
from benchmarks.surfaces import GRIDS, Record, Surface, compute_part, graph_of, loader_part

COLD_TURNS = 1
"""Turns of a duet that do not count, since both sides find their caches cold, as in the product."""


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

    The nearest differs in the fewest knobs, and of those in the ones of the least expected effect.

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
        if wanted in among:
            return wanted

        def distance(known: TrainConfig) -> tuple[object, ...]:
            differing = [
                -position for position, knob in enumerate(self.choices) if getattr(known, knob) != getattr(wanted, knob)
            ]
            return len(differing), differing, repr(known)

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
        max_workers=max([surface.header.hardware.cpu.budget, facts.baseline.num_workers]),
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
        self._living: tuple[Point, float] | None = None
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
        candidate: Point,
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Pair], None],
    ) -> tuple[Burst, Pair | None]:
        """A candidate's recorded process against the incumbent's, which stays the same while it is the incumbent.

        A block's ratio is how the candidate did in one of its blocks, over how the incumbent's process did on the
        whole, both in turn with the baseline: so it scatters as pairs do.
        """
        record = self._rng.choice(self._records[candidate.config, "all"])
        spent = self._start_seconds(record)
        if record.burst.measurement is None or spent > deadline_seconds:
            return self._told(candidate, record, deadline_seconds), None
        turn, levels = self._turn_seconds(plan), record.levels()
        against = self._level_of(incumbent) if incumbent is not None else None
        drawn: list[float] = []
        pair = None
        spent += 0.0 if against is None else COLD_TURNS * 2 * turn
        while len(drawn) * turn < plan.measure_seconds and spent < deadline_seconds:
            drawn.append(self._rng.choice(levels))
            spent += turn
            if incumbent is not None and against is not None:
                spent += turn
                pair = pair_of(incumbent, [1.0] * len(drawn), [math.exp(against - one) for one in drawn], self._scatter)
                if pair is not None:
                    told(pair)
                    if pair.decided and plan.fastest_wins:
                        break
        if against is not None:
            self._scatter.add([1.0] * len(drawn), [math.exp(against - one) for one in drawn])
        if incumbent is None or (pair is not None and pair.promotes and plan.fastest_wins):
            self._living = (candidate, statistics.fmean(levels))
        return self._played(candidate, record, self._blocks(drawn, turn), spent), pair

    def prepare(self, candidate: Point, plan: BurstPlan) -> None:
        """Nothing is started beforehand."""

    @property
    def is_prepared(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """The incumbent's process ends: another one is drawn when it is needed again."""
        self._living = None

    def _level_of(self, incumbent: Point) -> float:
        """How the incumbent's process that lives does, over the baseline, as a logarithm."""
        if self._living is None or self._living[0] != incumbent:
            known = [record for record in self._records[incumbent.config, "all"] if record.burst.ok]
            self._living = (incumbent, statistics.fmean(self._rng.choice(known).levels()))
        return self._living[1]

    def _blocks(self, levels: Sequence[float], turn_seconds: float) -> tuple[Block, ...]:
        """Blocks of as many samples each, at these speeds over the baseline."""
        samples = max(1, round(self._reference * turn_seconds))
        usual = samples / self._reference
        return tuple(
            Block(samples=samples, seconds=usual * math.exp(-level), data_wait_seconds=0.0) for level in levels
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
