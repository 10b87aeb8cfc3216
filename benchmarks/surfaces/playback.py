"""Plays a recorded surface back: bursts on a virtual clock that charges what they really cost."""

from __future__ import annotations

import dataclasses
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from autotune.bursts.protocol import BurstPlan, Part
from autotune.knobs.circumstances import Choices
from autotune.knobs.config import Scalar, TrainConfig
from autotune.knobs.space import Space, build_space
from autotune.measuring.pairs import Pair, pair_of
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from benchmarks.surfaces import GRIDS, Record, Surface, compute_part, graph_of, loader_part

COLD_TURNS = 3
"""Turns of a duet in which blocks are sized and the candidate warms up, as in the product."""


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
    """Samples per second of every config: the mean of all blocks of all its processes; 0 where it failed."""
    rates: dict[TrainConfig, list[float]] = {}
    for record in surface.records:
        if record.part == "all":
            blocks = rates.setdefault(record.burst.point.config, [])
            if record.burst.ok and record.burst.measurement is not None:
                blocks += record.burst.measurement.block_rates
    return {config: statistics.fmean(blocks) if blocks else 0.0 for config, blocks in rates.items()}


class Playback:
    """A `Runner` over a surface.

    A burst is one of the recorded processes of its config, drawn at random, and its blocks are drawn from that
    process's, with replacement: the noise between processes and within them persists.

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
        self._living: tuple[Point, Measurement | None] | None = None
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
        """A burst of each point: whole processes were recorded, not pairs, so that what a duet cancels stays."""
        deadline = self.clock.now + deadline_seconds
        return [self.run(point, plan, deadline - self.clock.now) for point in points]

    def challenge(
        self,
        incumbent: Point | None,
        candidate: Point,
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Pair], None],
    ) -> tuple[Burst, Pair | None]:
        """A candidate's recorded process against the incumbent's, which stays the same while it is the incumbent.

        Whole processes were recorded one after the other, not pairs: noise that a duet cancels is in the ratio, so that
        deciding takes longer here than beside each other.
        """
        if incumbent is None:
            burst = self.run(candidate, plan, deadline_seconds)
            self._living = (candidate, burst.measurement)
            return burst, None
        record = self._rng.choice(self._records[candidate.config, "all"])
        measured, partner = record.burst.measurement, self._partner(incumbent)
        start = record.burst.seconds + self._compile_difference(record)
        if measured is None or partner is None or start > deadline_seconds:
            return self._told(candidate, record, deadline_seconds), None
        turn = min(2 * plan.block_seconds, plan.measure_seconds / 10)
        spent = start - measured.measure_seconds - (measured.warmup_seconds - _compile_seconds(measured))
        spent = max(spent, 0.2) + 2 * COLD_TURNS * turn
        mine: list[float] = []
        theirs: list[float] = []
        blocks: list[Block] = []
        pair = None
        while len(mine) * turn < plan.measure_seconds and spent < deadline_seconds:
            block = self._rng.choice(measured.blocks)
            blocks.append(block)
            mine.append(1 / self._rng.choice(partner.block_rates))
            theirs.append(block.seconds / block.samples)
            spent += 2 * turn
            pair = pair_of(incumbent, mine, theirs)
            if pair is not None:
                told(pair)
                if pair.decided and plan.fastest_wins:
                    break
        kept = measured.model_copy(update={"blocks": tuple(blocks), "telemetry": None})
        burst = record.burst.model_copy(update={"point": candidate, "measurement": kept, "seconds": spent})
        if pair is not None and pair.promotes and plan.fastest_wins:
            self._living = (candidate, measured)
        self._pass(burst, "all")
        return burst, pair

    def prepare(self, candidate: Point, plan: BurstPlan) -> None:
        """Nothing is started beforehand."""

    @property
    def is_prepared(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """The incumbent's process ends: another one is drawn when it is needed again."""
        self._living = None

    def _partner(self, incumbent: Point) -> Measurement | None:
        """The process of the incumbent that lives."""
        if self._living is None or self._living[0] != incumbent:
            self._living = (incumbent, self._rng.choice(self._records[incumbent.config, "all"]).burst.measurement)
        return self._living[1]

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
