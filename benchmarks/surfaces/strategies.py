"""Ways of choosing a config: the product's own search, its halves, and what others do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.knobs.config import Scalar, TrainConfig
from autotune.measuring.progress import Progress
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search.bursts import Bursts
from autotune.search.driver import Search
from autotune.search.ranking import standings
from autotune.search.stopping import Budget
from autotune.search.storage import make_sampler
from autotune.search.trials import Trial, TrialLog
from autotune.sessions.tuning_result import judge
from benchmarks.surfaces import Surface
from benchmarks.surfaces.playback import Playback, RecordedSpace, VirtualClock

OURS = "autotune"
SAMPLER_TRIES: dict[Callable[..., BaseSampler], int] = {TPESampler: 60, GPSampler: 20}
"""A sampler that has proposed known configs so often in a row has nothing new to propose. The Gaussian process takes
half a second for each proposal by then, and has settled sooner."""


@dataclass(frozen=True)
class Played:
    """One replay.

    Attributes:
        baseline: What is chosen before anything was found.
        choices: What was chosen, and from when on.
        bursts: What ran, and when it ended.
    """

    baseline: TrainConfig
    choices: tuple[tuple[float, TrainConfig], ...]
    bursts: tuple[tuple[float, Burst], ...]


Strategy = Callable[[Surface, RecordedSpace, float, int], Played]


def autotune(
    surface: Surface, space: RecordedSpace, budget_seconds: float, seed: int, *, sampler: str = "bayes"
) -> Played:
    """The product's own search, or another sampler in its place.

    Until it ends its choice is the fastest so far; in the end it is what it recommends.
    """
    clock = VirtualClock()
    playback = Playback(surface, clock, seed)
    study = optuna.create_study(sampler=make_sampler(sampler, seed), direction="maximize")
    log = TrialLog(study, space)
    bursts = Bursts(Point(config=space.baseline), playback, log, Budget(budget_seconds, clock=clock), Progress())
    search = Search(space, bursts, seed=seed, by_sampler=sampler != "bayes")
    search.run()
    choices: list[tuple[float, TrainConfig]] = []
    searched: list[Trial] = []
    ends = [at for at, _, part in playback.ran if part == "all"]
    for at, trial in zip(ends, log.trials, strict=True):
        if trial.round is None:
            searched.append(trial)
            best = next(iter(standings(searched, log.design)), None)
            if best is not None and (not choices or choices[-1][1] != best.point.config):
                choices.append((at, best.point.config))
    choices.append((clock.now, judge(search, "budget")[0].config))
    return Played(space.baseline, tuple(choices), tuple((at, burst) for at, burst, _ in playback.ran))


def sampled(
    sampler: Callable[..., BaseSampler], surface: Surface, space: RecordedSpace, budget_seconds: float, seed: int
) -> Played:
    """An Optuna sampler with its defaults over the same space, as one codes it: every knob a category.

    What has run before is told again, at no cost.
    """
    clock = VirtualClock()
    study = optuna.create_study(sampler=sampler(seed=seed), direction="maximize")
    study.enqueue_trial({knob: getattr(space.baseline, knob) for knob in space.choices})
    categories: dict[str, BaseDistribution] = {
        knob: CategoricalDistribution(tuple(dict.fromkeys((*choice.values, getattr(space.baseline, knob)))))
        for knob, choice in space.choices.items()
    }
    playback = Playback(surface, clock, seed)
    known: dict[TrainConfig, float] = {}
    repeats = 0
    while clock.now < budget_seconds and repeats < SAMPLER_TRIES[sampler]:
        asked = study.ask(categories)
        config = space.config(asked.params)
        repeats = repeats + 1 if config in known else 0
        if config not in known:
            known[config] = playback.run(Point(config=config), BurstPlan(), budget_seconds - clock.now).rate or 0.0
        study.tell(asked, known[config])
    return _fastest_of(space, playback)


def in_turn(order: Callable[[RecordedSpace, int], Iterable[TrainConfig]]) -> Strategy:
    """Runs configs in an order that is known from the start."""

    def play(surface: Surface, space: RecordedSpace, budget_seconds: float, seed: int) -> Played:
        clock = VirtualClock()
        playback = Playback(surface, clock, seed)
        for config in dict.fromkeys([space.baseline, *order(space, seed)]):
            if clock.now >= budget_seconds:
                break
            playback.run(Point(config=config), BurstPlan(), budget_seconds - clock.now)
        return _fastest_of(space, playback)

    return play


def grid(space: RecordedSpace, _seed: int) -> Iterator[TrainConfig]:
    """All combinations, the last knob turning fastest; those that were not recorded stand for the nearest one."""
    names = list(space.choices)
    for values in product(*(choice.values for choice in space.choices.values())):
        yield space.config(dict(zip(names, values, strict=True)))


def shuffled(space: RecordedSpace, seed: int) -> list[TrainConfig]:
    """All that was recorded, in random order."""
    configs = sorted(space.recorded, key=repr)
    random.Random(seed).shuffle(configs)
    return configs


def largest_batch(space: RecordedSpace, _seed: int) -> Iterator[TrainConfig]:
    """What Lightning's and Accelerate's finders do: the largest batch that fits, and all else as it is."""
    sizes = [int(value or 1) for value in space.choices["batch_size"].values] if "batch_size" in space.choices else []
    yield from (space.config({"batch_size": size}) for size in sorted(sizes, reverse=True)[:1])


def guides_rule(space: RecordedSpace, _seed: int) -> Iterator[TrainConfig]:
    """The hand-written guides' advice: half precision, channels_last, compile, fused, workers = cores, prefetch 4."""
    advice: dict[str, tuple[Scalar, ...]] = {
        "precision": ("fp16", "bf16"), "memory_format": ("channels_last",), "compile_mode": ("default",),
        "optimizer_impl": ("fused",), "num_workers": (2, 1), "prefetch_factor": (4, 2), "persistent_workers": (True,),
    }  # fmt: skip
    values = {
        knob: next(value for value in wanted if value in space.choices[knob].values)
        for knob, wanted in advice.items()
        if knob in space.choices and set(wanted) & set(space.choices[knob].values)
    }
    yield space.config(values)


def _fastest_of(space: RecordedSpace, playback: Playback) -> Played:
    choices, best = [], 0.0
    for at, burst, _ in playback.ran:
        if burst.outcome is Outcome.OK and (burst.rate or 0.0) > best:
            best = burst.rate or 0.0
            choices.append((at, burst.point.config))
    return Played(space.baseline, tuple(choices), tuple((at, burst) for at, burst, _ in playback.ran))


STRATEGIES: dict[str, Strategy] = {
    OURS: autotune,
    "TPE in our hosts": lambda *of: autotune(*of, sampler="tpe"),
    "Optuna TPE": lambda *of: sampled(TPESampler, *of),
    "Optuna GP": lambda *of: sampled(GPSampler, *of),
    "random": in_turn(shuffled),
    "grid": in_turn(grid),
    "largest batch that fits": in_turn(largest_batch),
    "the guides' rule": in_turn(guides_rule),
}
