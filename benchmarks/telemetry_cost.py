"""What the thread that watches a burst costs: training with it and without it, in turn, in one process.

    python -m benchmarks.telemetry_cost                    # a minute and a half for each case
    python -m benchmarks.telemetry_cost --rounds 6         # a look

A round trains for a moment with the watcher and for a moment without it, in random order; the loop (`benchmarks.plain`)
runs on from one to the next, so that a machine that drifts slows both alike. The cost is the share of the rate that
is lost, as the mean of the rounds with its 95 % interval; the goal is less than 1 %.
Writes benchmarks/output/telemetry_cost.json.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import torch

from autotune import TrainConfig
from autotune.burst.telemetry import Telemetry
from autotune.workload import load_workload
from benchmarks.output import save
from benchmarks.plain import Loop, set_process
from benchmarks.ratios import Ratio, paired_ratio

ROUNDS, INTERVAL_SECONDS, WARMUP_SECONDS = 45, 1.0, 3.0
GOAL = 0.01


class Case(NamedTuple):
    """A workload under a config."""

    target: str
    config: TrainConfig


CASES = {
    "digits": Case("benchmarks.digits:build", TrainConfig(batch_size=64)),
    "digits, 2 workers": Case(
        "benchmarks.digits:build", TrainConfig(batch_size=64, num_workers=2, persistent_workers=True)
    ),
    "charlm": Case("benchmarks.charlm:build", TrainConfig(batch_size=16, accumulation_steps=2)),
}


def make_watcher() -> contextlib.AbstractContextManager[object]:
    """The thread as it runs beside a burst on a CPU; a new one each time, since a thread starts only once."""
    return Telemetry(None, lambda _: None)


def rates(case: Case, rounds: int, seed: int = 0) -> dict[bool, list[float]]:
    """Samples per second with the watcher (True) and without it (False), by round."""
    torch.manual_seed(seed)
    device = "cpu"
    set_process(case.config, torch.device(device))
    steps = Loop(load_workload(case.target), case.config, device).steps()
    train_for(steps, WARMUP_SECONDS)
    rng = random.Random(seed)
    measured: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for watched in rng.sample((True, False), k=2):
            with make_watcher() if watched else contextlib.nullcontext():
                measured[watched].append(train_for(steps, INTERVAL_SECONDS))
    return measured


def train_for(steps: Iterator[int], seconds: float) -> float:
    """Samples per second over whole optimizer steps that take at least so long."""
    began = time.perf_counter()
    samples, elapsed = 0, 0.0
    while elapsed < seconds:
        samples += next(steps)
        elapsed = time.perf_counter() - began
    return samples / elapsed


def rates_afresh(case: Case, rounds: int) -> dict[bool, list[float]]:
    """`rates` in a process of its own: what a case leaves behind does not meet the next one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(rates, case, rounds).result()


def cost(ratio: Ratio) -> dict[str, float | bool]:
    """The share of the rate that is lost, with its interval, from the ratio of the rate with over that without."""
    return {
        "cost": 1 - ratio.ratio,
        "low": 1 - ratio.ci95.high,
        "high": 1 - ratio.ci95.low,
        "goal": GOAL,
        "met": 1 - ratio.ratio < GOAL,
    }


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of a second with and a second without, for a case")
    rounds = parser.parse_args().rounds
    rows = {}
    for name, case in CASES.items():
        measured = rates_afresh(case, rounds)
        row = cost(paired_ratio(measured[False], measured[True]))
        print(f"{name:20} {row['cost']:+.2%}  (95 % interval {row['low']:+.2%} – {row['high']:+.2%}), goal {GOAL:.0%}")
        rows[name] = row | {"samples_per_second": {"with": measured[True], "without": measured[False]}}
    print(f"written to {save('telemetry_cost', {'rounds': rounds, 'cases': rows})}")


if __name__ == "__main__":
    main()
