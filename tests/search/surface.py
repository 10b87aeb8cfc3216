"""A made-up surface and a virtual clock: the search's own code runs on it in milliseconds."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import optuna

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.hardware import Cpu, DeviceKind, Hardware, Memory, Software
from autotune.knobs.config import TrainConfig
from autotune.knobs.facts import WorkloadFacts
from autotune.knobs.registry import affecting
from autotune.knobs.space import Space, build_space
from autotune.measuring.numerics import NumericsGuard
from autotune.measuring.objective import SAMPLES_PER_SECOND, Objective
from autotune.measuring.pairs import Pair, pair_of
from autotune.measuring.progress import Progress
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.search.bursts import Bursts
from autotune.search.driver import Search
from autotune.search.proposal import Proposal
from autotune.search.stopping import Budget
from autotune.search.storage import make_sampler
from autotune.search.trials import TrialLog
from benchmarks.surfaces.playback import VirtualClock

GIB = 2**30
Rate = Callable[[TrainConfig], float]


class SurfaceRunner:
    """Bursts of a made-up machine: a rate for every config, noise, a cost, and a batch above which memory is out."""

    def __init__(
        self,
        clock: VirtualClock,
        rate: Rate,
        *,
        noise: float = 0.02,
        oom_above: int = 10**9,
        fits: Callable[[TrainConfig], bool] = lambda _: True,
        cost: float = 2.0,
        compile_cost: float = 0.0,
        bytes_of: Rate | None = None,
        loader_rate: Rate | None = None,
        compute_rate: Rate | None = None,
        evaluation_rate: Rate | None = None,
        wait: float = 0.0,
        activity: float | None = None,
        clock_mhz: Rate = lambda _: 1500.0,
        seed: int = 0,
    ):
        self.clock = clock
        self.rate = rate
        self.noise = noise
        self.oom_above, self.fits = oom_above, fits
        self.misfit = Outcome.OOM, "out of memory"
        self.cost = cost
        self.compile_cost = compile_cost
        self.bytes_of = bytes_of
        self.rates = {"loader": loader_rate, "compute": compute_rate, "evaluation": evaluation_rate}
        self.wait = wait
        self.activity = activity
        self.clock_mhz = clock_mhz
        self.fails: str | None = None
        self.failed_in = "train"
        self.failing: Point | None = None  # alone
        self.ran: list[Point] = []
        self.parts: list[str] = []
        self.turns: list[list[Point]] = []
        self._longest_round = 0.0
        self._compiled: set[tuple[object, ...]] = set()
        self._rng = random.Random(seed)

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Spends the cost on the virtual clock, and never more than the deadline."""
        self.ran.append(point)
        self.parts.append(plan.part)
        compiling = self._compiling_seconds(point.config)
        cost = self.cost + compiling
        spent = min(cost, deadline_seconds)
        self.clock.now += spent
        if spent < cost:
            return Burst(point=point, outcome=Outcome.TIMEOUT, reason="too slow", seconds=spent)
        if self.fails is not None and self.failing in {None, point}:
            return Burst(point=point, outcome=Outcome.CRASHED, reason=self.fails, seconds=spent, phase=self.failed_in)
        if point.config.batch_size > self.oom_above or not self.fits(point.config):
            outcome, reason = self.misfit
            return Burst(point=point, outcome=outcome, reason=reason, seconds=spent)
        rate = (self.rates.get(plan.part) or self.rate)(point.config) * self._rng.gauss(1, self.noise)
        blocks = tuple(
            Block(samples=1000, seconds=seconds, data_wait_seconds=self.wait * seconds)
            for seconds in (1000 / (rate * self._rng.gauss(1, 0.005)) for _ in range(8))
        )
        measurement = Measurement(
            blocks=blocks, start_seconds=0.1, build_seconds=0.1, warmup_seconds=spent / 4,
            telemetry=TelemetrySummary(
                seconds=1.0, sm_activity_fraction=self.activity, sm_clock_mhz=self.clock_mhz(point.config)
            ),
            device_memory_bytes=round(self.bytes_of(point.config)) if self.bytes_of else None,
            compile_seconds=compiling if point.config.compile_mode is not None else None,
        )  # fmt: skip
        return Burst(point=point, outcome=Outcome.OK, measurement=measurement, phase="done", seconds=spent)

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """A burst of each, one after the other; sides of a round that confirms take half as long as a challenge."""
        deadline = self.clock() + deadline_seconds
        self._longest_round = max(self._longest_round, plan.measure_seconds)
        cost, self.cost = self.cost, self.cost / 2 * plan.measure_seconds / self._longest_round
        bursts = [self.run(point, plan, deadline - self.clock()) for point in points]
        self.cost = cost
        return bursts

    def challenge(
        self,
        incumbent: Point | None,
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        on_pair: Callable[[Point, Pair], None],
    ) -> list[tuple[Burst, Pair | None]]:
        """A burst of each candidate, beside the incumbent at its own rate: processes differ by chance, blocks less."""
        deadline = self.clock() + deadline_seconds
        self.turns.append(list(candidates))
        return [self._against(incumbent, one, plan, deadline - self.clock(), on_pair) for one in candidates]

    def _against(
        self,
        incumbent: Point | None,
        candidate: Point,
        plan: BurstPlan,
        deadline_seconds: float,
        on_pair: Callable[[Point, Pair], None],
    ) -> tuple[Burst, Pair | None]:
        burst = self.run(candidate, plan, deadline_seconds)
        if incumbent is None or burst.measurement is None:
            return burst, None
        whole = plan.part != "evaluation"
        rate = (self.rate if whole else self.rates["evaluation"] or self.rate)(incumbent.config)
        theirs = [block.samples / (rate * self._rng.gauss(1, 0.005)) for block in burst.measurement.blocks]
        pair = pair_of(incumbent, theirs, burst.measurement.block_seconds)
        if pair is not None:
            on_pair(candidate, pair)
        return burst, pair

    def close(self) -> None:
        """Nothing lives on."""

    def _compiling_seconds(self, config: TrainConfig) -> float:
        """Compiling code for the first time takes long; afterwards it comes out of a cache."""
        code = config.pick(affecting("compiled code"))
        if config.compile_mode is None:
            return 0.0
        cached = code in self._compiled
        self._compiled.add(code)
        return 0.15 * self.compile_cost if cached else self.compile_cost


def make_facts(**changes: object) -> WorkloadFacts:
    """Facts of an image workload at batch 64."""
    facts = {
        "target": "made.up:build", "name": "made up", "fingerprint": "f", "samples": 10_000,
        "model": {"name": "Net", "weights": 10**6, "tensors": 2, "shapes": "s", "optimizer": "SGD"},
        "baseline": TrainConfig(batch_size=64), "parameters": 10**6, "batch_bytes": 10**6, "sample_seconds": 1e-3,
        "convolves": (2,), "has_attention": False, "fixed_shapes": True, "optimizer_impls": ("foreach", "fused"),
        "fork_safe": True,
    }  # fmt: skip
    return WorkloadFacts.model_validate({**facts, **changes})


def make_hardware() -> Hardware:
    """A four-core machine without a GPU."""
    return Hardware(
        hostname="made-up",
        cpu=Cpu(
            model="Made Up", physical_cores=4, logical_cores=4, budget=4, isa=("avx512_bf16",),
            precisions=("fp32", "bf16"),
        ),
        memory=Memory(total_bytes=32 * GIB, available_bytes=16 * GIB, shm_bytes=8 * GIB),
        software=Software(os="Linux", python="3.12"),
    )  # fmt: skip


def make_space(*, effective_batch: int | None = 64, facts: Mapping[str, object] = {}, **options: object) -> Space:
    """What is searched on that machine."""
    return build_space(make_hardware(), make_facts(**facts), device="cpu", effective_batch=effective_batch, **options)  # type: ignore[arg-type]


def make_search(
    rate: Rate, *, budget_seconds: float = 60.0, space: Space | None = None, seed: int = 0, sampler: str = "bayes",
    storage: optuna.storages.BaseStorage | None = None, utilization_target: float = 0.95,
    at_least: float | None = None,
    memory_limit_bytes: int | None = None, numerics: NumericsGuard | None = None, first: Sequence[Proposal] = (),
    objective: Objective = SAMPLES_PER_SECOND,
    note: Callable[[str], None] | None = None, headroom: bool = False, device: DeviceKind = "cpu",
    facts: WorkloadFacts | None = None,
    **runner: object,
) -> tuple[Search, SurfaceRunner]:  # fmt: skip
    """A search on a made-up surface, and its runner."""
    clock = VirtualClock()
    space = space or make_space()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="s", storage=storage, sampler=make_sampler(sampler, seed), direction="maximize", load_if_exists=True
    )
    surface = SurfaceRunner(clock, rate, seed=seed, **runner)  # type: ignore[arg-type]
    budget = Budget(budget_seconds, clock=clock)
    baseline, log = Point(config=space.baseline), TrialLog(study, space, objective=objective)
    search = Search(
        space, Bursts(baseline, surface, log, budget, Progress(), device, memory_limit_bytes, facts),
        utilization_target=utilization_target, at_least=at_least, seed=seed, numerics=numerics, first=first, note=note,
        headroom=headroom, by_sampler=sampler != "bayes",
    )  # fmt: skip
    return search, surface


@functools.cache
def finished(budget_seconds: float = 120.0) -> tuple[Search, SurfaceRunner]:
    """A search of `example_rate` that is over, and its runner, for tests that only look at it."""
    search, surface = make_search(example_rate, budget_seconds=budget_seconds)
    search.run()
    return search, surface


def example_rate(config: TrainConfig) -> float:
    """Gains that multiply: bf16, the allocator, channels_last, two workers; small batches cost."""
    rate = 1000.0
    rate *= 1.6 if config.precision == "bf16" else 1.0
    rate *= 1.3 if config.allocator == "tuned" else 1.0
    rate *= 1.1 if config.memory_format == "channels_last" else 1.0
    rate *= {0: 1.0, 1: 1.15, 2: 1.25}.get(config.num_workers, 1.1)
    return rate * config.batch_size / (config.batch_size + 8)


def journal_storage(path: Path) -> optuna.storages.BaseStorage:
    """The journal that the product uses."""
    from autotune.search.storage import open_journal

    return open_journal(path)
