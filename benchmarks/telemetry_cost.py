"""What the thread that watches a burst costs: training with it and without it, in turn, in one process.

    python -m benchmarks.telemetry_cost                    # a minute and a half for each case
    python -m benchmarks.telemetry_cost --rounds 6         # a look

A round trains for a moment with the watcher and for a moment without it, in random order; the loop (`benchmarks.plain`)
runs on from one to the next, so that a machine that drifts slows both alike. The cost is the share of the rate that
is lost, as the median of the rounds with its 95 % interval, so that a few moments of foreign load do not matter; the
goal is less than 1 %. Beside it stands the CPU time that one look of the watcher takes.
Writes benchmarks/output/telemetry_cost.json.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch

from autotune import TrainConfig
from autotune.timing.usage import UsageWatch, resident_bytes
from autotune.workload.target import load_workload
from benchmarks.output import save
from benchmarks.plain import Loop, set_process
from benchmarks.ratios import bootstrap_interval

ROUNDS, SETTLE_SECONDS, INTERVAL_SECONDS, WARMUP_SECONDS = 40, 0.5, 1.0, 3.0
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


class Rates(NamedTuple):
    """What a case came to.

    Attributes:
        watched: Samples per second with the watcher, by round.
        alone: The same without it.
        look_seconds: CPU time of one look at the process tree.
    """

    watched: list[float]
    alone: list[float]
    look_seconds: float


def make_watcher() -> UsageWatch:
    """The thread as it runs beside a burst on a CPU; a new one each time, since a thread starts only once."""
    return UsageWatch(None, lambda _: None, peaks=True)


def measure(case: Case, rounds: int, seed: int = 0) -> Rates:
    """Trains in this process, with the watcher and without it in each round."""
    torch.manual_seed(seed)
    device = "cpu"
    set_process(case.config, torch.device(device))
    steps = Loop(load_workload(case.target), case.config, device).steps()
    train_for(steps, WARMUP_SECONDS)
    rng = random.Random(seed)
    measured = Rates([], [], look_seconds())
    for _ in range(rounds):
        for watched in rng.sample((True, False), k=2):
            with make_watcher() if watched else contextlib.nullcontext():
                train_for(steps, SETTLE_SECONDS)  # as a burst's warm-up: memory is counted for the first time then
                rate = train_for(steps, INTERVAL_SECONDS)
            (measured.watched if watched else measured.alone).append(rate)
    return measured


def look_seconds(looks: int = 20) -> float:
    """CPU time of one look at the process tree as it is now."""
    began = time.thread_time()
    for _ in range(looks):
        resident_bytes(peaks=True)
    return (time.thread_time() - began) / looks


def train_for(steps: Iterator[int], seconds: float) -> float:
    """Samples per second over whole optimizer steps that take at least so long."""
    began = time.perf_counter()
    samples, elapsed = 0, 0.0
    while elapsed < seconds:
        samples += next(steps)
        elapsed = time.perf_counter() - began
    return samples / elapsed


def measure_afresh(case: Case, rounds: int) -> Rates:
    """`measure` in a process of its own: what a case leaves behind does not meet the next one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, case, rounds).result()


def cost(rates: Rates) -> dict[str, Any]:
    """The share of the rate that is lost, with its interval, and what it comes from."""
    lost = [1 - watched / alone for watched, alone in zip(rates.watched, rates.alone, strict=True)]
    median = statistics.median(lost)
    low, high = bootstrap_interval(lost, statistics.median)
    return {"cost": median, "low": low, "high": high, "goal": GOAL, "met": median < GOAL} | rates._asdict()


def main() -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of a second with and a second without, for a case")
    rounds = parser.parse_args().rounds
    rows = {}
    for name, case in CASES.items():
        row = rows[name] = cost(measure_afresh(case, rounds))
        print(
            f"{name:20} {row['cost']:+.2%}  (95 % interval {row['low']:+.2%} – {row['high']:+.2%}), goal {GOAL:.0%}; "
            f"a look takes {1000 * row['look_seconds']:.2f} ms"
        )
    print(f"written to {save('telemetry_cost', {'rounds': rounds, 'cases': rows})}")


if __name__ == "__main__":
    main()
