"""Which way of searching is best? Replays recorded surfaces: the product's own search beside eight other ways.

    python -m benchmarks.replay                          # all surfaces, 100 seeds, 10 virtual minutes each: an hour
    python -m benchmarks.replay digits --seeds 10 --no-save
    python -m benchmarks.replay --strategies autotune    # the others' figures stay as they were written

A virtual clock charges what each burst really cost, compiling included. What a way of searching has chosen at a moment
is scored by the pooled mean of that config's recorded blocks, as a fraction of the best config's: a lucky burst counts
for nothing. All begin with the user's own config. Prints a table and writes benchmarks/output/replay.json and .svg.
Deterministic for a seed.

P(t) is the score of Willemsen et al. (doi 10.1016/j.future.2024.05.021): 0 for random search, whose expectation is
calculated from the surface, 1 for the optimum; none where random search is expected to have found that.

Processes that train the same config differ, by some per cent on a small machine. What can be found in spite of that is
told by a reference that no budget allows: every recorded config once, and the fastest four three times more.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import optuna

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Outcome, Point
from benchmarks.output import save, saved
from benchmarks.surfaces import GRIDS, Surface, read_surface, surface_path
from benchmarks.surfaces.playback import (
    Playback,
    RecordedSpace,
    VirtualClock,
    mean_cost,
    optimum,
    recorded_space,
    true_rates,
)
from benchmarks.surfaces.plot import write_plot
from benchmarks.surfaces.strategies import OURS, STRATEGIES, Played

SEEDS = 100
MINUTES = (1, 2, 5, 10)
BUDGET_SECONDS = 60.0 * max(MINUTES)
CLOSE = 0.95
NEARLY_ALL = 0.999
"""Where random search is expected to reach so much, no other way can be told from it."""
RACED, RACES = 4, 3
"""What the reference runs again, and how often."""
FAIR_BURSTS = 15
"""The goal counts after the cost of so many bursts."""


def play(strategy: str, seed: int, *, surface_name: str, budget_seconds: float) -> Played:
    """One replay of one strategy."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    surface, space = _recorded(surface_name, budget_seconds)
    return STRATEGIES[strategy](surface, space, budget_seconds, seed)


@functools.cache
def _recorded(surface_name: str, budget_seconds: float) -> tuple[Surface, RecordedSpace]:
    surface = read_surface(surface_path(surface_name))
    return surface, recorded_space(surface, budget_seconds)


def fraction_at(played: Played, seconds: float, rates: dict[TrainConfig, float]) -> float:
    """Rate of the config that was chosen at a moment, as a fraction of the optimum."""
    chosen = [config for at, config in played.choices if at <= seconds]
    return rates[chosen[-1]] / optimum(rates) if chosen else rates[played.baseline] / optimum(rates)


def time_to(share: float, played: Played, rates: dict[TrainConfig, float]) -> float | None:
    """When the choice came to this share of the optimum for good; None if never."""
    reached = None
    for at, config in played.choices:
        if rates[config] < share * optimum(rates):
            reached = None
        elif reached is None:
            reached = at
    return reached


def random_at(seconds: float, rates: dict[TrainConfig, float], cost: float, baseline: TrainConfig) -> float:
    """Expected fraction of the best of the baseline and as many configs, drawn without replacement, as time allows."""
    best = optimum(rates)
    floor = rates[baseline]
    draws = min(len(rates), max(0, int(seconds / cost) - 1))
    values = sorted((max(rate, floor) / best for rate in rates.values()), reverse=True)
    expected, none_so_far = 0.0, 1.0
    for taken, value in enumerate(values):  # the chance that the best of the draws is this one
        left = len(values) - taken
        hit = min(1.0, draws / left)
        expected += none_so_far * hit * value
        none_so_far *= 1 - hit
    return expected + none_so_far * floor / best


def found_regardless_of_cost(surface_name: str, seeds: int) -> list[float]:
    """Fractions of the optimum that one finds who runs every config once, and the fastest few again."""
    surface, space = _recorded(surface_name, BUDGET_SECONDS)
    rates = true_rates(surface)
    found = []
    for seed in range(seeds):
        playback = Playback(surface, VirtualClock(), seed)
        seen = {config: [_rate(playback, config)] for config in sorted(space.recorded, key=repr)}
        first = sorted(seen, key=lambda config: seen[config][0], reverse=True)[:RACED]
        for config in first:
            seen[config] += [_rate(playback, config) for _ in range(RACES)]
        found.append(rates[max(first, key=lambda config: statistics.fmean(seen[config]))] / optimum(rates))
    return found


def _rate(playback: Playback, config: TrainConfig) -> float:
    return playback.run(Point(config=config), BurstPlan(), math.inf).rate or 0.0


def summarise(plays: Sequence[Played], surface_name: str) -> dict[str, Any]:
    """The figures of one strategy on one surface."""
    surface = read_surface(surface_path(surface_name))
    rates, cost = true_rates(surface), mean_cost(surface)
    baseline = surface.header.facts.baseline
    at = {minute: [fraction_at(played, 60.0 * minute, rates) for played in plays] for minute in MINUTES}
    after_fair = [fraction_at(played, FAIR_BURSTS * cost, rates) for played in plays]
    times = [time_to(CLOSE, played, rates) for played in plays]
    chance = {minute: random_at(60.0 * minute, rates, cost, baseline) for minute in MINUTES}
    ooms = [[burst for _, burst in played.bursts if burst.outcome is Outcome.OOM] for played in plays]
    never = [BUDGET_SECONDS if seconds is None else seconds for seconds in times]
    return {
        "seeds": len(plays),
        "fraction": {str(minute): statistics.fmean(values) for minute, values in at.items()},
        "fraction_low": {str(minute): sorted(values)[len(values) // 20] for minute, values in at.items()},
        "score": {
            str(minute): (statistics.fmean(values) - chance[minute]) / (1 - chance[minute])
            for minute, values in at.items()
            if chance[minute] < NEARLY_ALL
        },
        "median_after_15_bursts": statistics.median(after_fair),
        "p95_after_15_bursts": statistics.fmean(value >= CLOSE for value in after_fair),
        "p95_at_end": statistics.fmean(value >= CLOSE for value in at[max(MINUTES)]),
        "median_seconds_to_95": statistics.median(never),
        "oom_bursts": statistics.fmean(len(found) for found in ooms),
        "oom_seconds": statistics.fmean(sum(burst.seconds for burst in found) for found in ooms),
        "bursts": statistics.fmean(len(played.bursts) for played in plays),
    }


def compare(surface_name: str, seeds: int, strategies: Sequence[str], workers: int) -> dict[str, Any]:
    """All strategies on one surface."""
    surface = read_surface(surface_path(surface_name))
    rates, cost = true_rates(surface), mean_cost(surface)
    baseline = surface.header.facts.baseline
    found: dict[str, Any] = {}
    tracks: dict[str, list[Played]] = {}
    with ProcessPoolExecutor(workers) as pool:
        for strategy in strategies:
            job = partial(play, strategy, surface_name=surface_name, budget_seconds=BUDGET_SECONDS)
            tracks[strategy] = list(pool.map(job, range(seeds), chunksize=max(1, seeds // (4 * workers))))
            found[strategy] = summarise(tracks[strategy], surface_name)
            print(row(strategy, found[strategy]), flush=True)
    regardless = found_regardless_of_cost(surface_name, seeds)
    print(f"  regardless of cost: {statistics.fmean(regardless):.3f}, median {statistics.median(regardless):.3f}")
    times = [BUDGET_SECONDS * step / 120 for step in range(1, 121)]
    return {
        "configs": len(rates),
        "baseline_fraction": rates[baseline] / optimum(rates),
        "optimum": optimum(rates),
        "best_config": max(rates, key=lambda config: rates[config]).changes_from(baseline),
        "mean_burst_seconds": cost,
        "recording_seconds": sum(record.burst.seconds for record in surface.records),
        "regardless_of_cost": {
            "mean": statistics.fmean(regardless),
            "median": statistics.median(regardless),
            "p95": statistics.fmean(value >= CLOSE for value in regardless),
        },
        "random_calculated": {str(minute): random_at(60.0 * minute, rates, cost, baseline) for minute in MINUTES},
        "strategies": found,
        "curves": {
            strategy: [
                [round(value, 4) for value in band(sorted(fraction_at(played, at, rates) for played in plays))]
                for at in times
            ]
            for strategy, plays in tracks.items()
        },
    }


def band(ordered: Sequence[float]) -> tuple[float, float, float]:
    """The 10th, 50th and 90th percentile of ordered values."""
    last = len(ordered) - 1
    return ordered[round(0.1 * last)], ordered[round(0.5 * last)], ordered[round(0.9 * last)]


def row(strategy: str, figures: dict[str, Any]) -> str:
    """One line of the table."""
    fractions = " ".join(f"{value:6.3f}" for value in figures["fraction"].values())
    fair = f"{figures['median_after_15_bursts']:7.3f} {figures['p95_after_15_bursts']:6.2f}"
    rest = f"{figures['median_seconds_to_95']:6.0f} s {figures['bursts']:6.1f} {figures['oom_bursts']:5.2f}"
    return f"  {strategy:24}{figures['seeds']:5}  {fractions}  {fair} {rest}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status: 1 when another way of searching came out ahead of ours."""
    parser = argparse.ArgumentParser(description="Replays searches on recorded surfaces.")
    known = [name for name in GRIDS if surface_path(name).exists()]
    parser.add_argument("surfaces", nargs="*", metavar="surface", help=f"of {', '.join(known)}; all when left out")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--strategies", nargs="+", choices=list(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--no-save", action="store_true", help="print the table only")
    options = parser.parse_args(arguments)
    if unknown := set(options.surfaces) - set(known):
        parser.error(f"not recorded: {', '.join(sorted(unknown))}; recorded are {', '.join(known)}")
    behind = False
    for name in options.surfaces or known:
        minutes = " ".join(f"{minute:3} min" for minute in MINUTES)
        print(f"{name}\n  {'':24}seeds  {minutes}  15 bursts  P≥95  to 95 % bursts   OOM")
        results = {name: compare(name, options.seeds, options.strategies, options.workers)}
        if not options.no_save:
            results = merged(saved("replay").get("surfaces", {}), results)
            print(f"written to {save('replay', {'surfaces': results})} and {write_plot(results, BUDGET_SECONDS)}")
        behind |= not ahead(results[name]["strategies"])
    return int(behind)


def merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What was replayed now, and what was written before of other surfaces and strategies, in their usual order."""
    results = dict(before)
    for name, result in now.items():
        parts = {part: before.get(name, {}).get(part, {}) | result[part] for part in ("strategies", "curves")}
        ordered = {part: {way: of[way] for way in STRATEGIES if way in of} for part, of in parts.items()}
        results[name] = result | ordered
    return {name: results[name] for name in GRIDS if name in results}


def ahead(strategies: dict[str, Any]) -> bool:
    """Whether no other way came out ahead of ours, by the mean fraction over the four moments."""
    overall = {name: statistics.fmean(figures["fraction"].values()) for name, figures in strategies.items()}
    return OURS not in overall or overall[OURS] >= max(overall.values()) - 1e-3


if __name__ == "__main__":
    sys.exit(main())
