"""Is a loader's ratio claimed right? Samples only sleep and so does the loss, so that the truth is known.

    python -m benchmarks.known_loader                     # a quarter of an hour
    python -m benchmarks.known_loader --epochs 20         # only short epochs, six minutes
    python -m benchmarks.known_loader --quick             # two minutes, to see that it runs

Reading a sample and training a batch take a known time and no processor. Workers 1, 2 and 4 × prefetch 2 and 8, with
epochs of 20 and of 2,000 batches, are each played against workers 0 in duets, as a confirmation plays them.

The truth are uninterrupted plain loops (`benchmarks.plain`), in turn, over whole epochs where those are short: they
hold what is no sleep, too, such as collating and the starts of epochs. Beside them stands arithmetic
(`expected_seconds`): each batch is ready when its worker has slept for all its samples, one batch after another, and no
more batches are under way than the queue holds.
Workers persist, unless --restart is given: then they start again in each epoch, which only the plain loop knows.

Writes benchmarks/output/known_loader.json. The exit status is 1 when a claimed ratio is more than 3 % off the truth.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from autotune import TrainConfig, Workload
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs import Scalar
from autotune.measuring import Point
from autotune.search.stopping import confirming_plan
from benchmarks.fresh import afresh
from benchmarks.output import save
from benchmarks.plain import Loop
from benchmarks.ratios import speedup_in

TARGET = "benchmarks.known_loader:build"
BATCH = 8
SAMPLE_SECONDS, STEP_SECONDS = 0.0025, 0.008
EPOCHS = (20, 2000)
WORKERS, PREFETCH = (1, 2, 4), (2, 8)
BUDGET_SECONDS = 120.0
DEADLINE_SECONDS = 300.0
ROUNDS, TRUTH_SECONDS, TRUTH_TURNS = 8, 10.0, 4
QUICK_EPOCHS, QUICK_ROUNDS, QUICK_TRUTH_SECONDS = (20,), 2, 2.0
QUICK_PLAN = BurstPlan(measure_seconds=1.0)
GOAL = 0.03


class Sleeping(Dataset[torch.Tensor]):
    """Samples that take a known time to read.

    Args:
        samples: How many.
        seconds: That each takes.
    """

    def __init__(self, samples: int, seconds: float) -> None:
        self.samples = samples
        self.seconds = seconds

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.ones(4)


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Takes a known time."""
    time.sleep(STEP_SECONDS)
    mean: torch.Tensor = model(batch).square().mean()
    return mean


def build(epoch_batches: int = 2000) -> Workload:
    """A workload that sleeps; the argument says how long an epoch is."""
    return Workload(
        model=nn.Linear(4, 1),
        dataset=Sleeping(BATCH * epoch_batches, SAMPLE_SECONDS),
        loss=loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
        batch_size=BATCH,
        name="known loader",
    )


def configs(restart: bool) -> Iterator[TrainConfig]:
    """The baseline, which has no workers, and all that are compared with it."""
    yield TrainConfig(batch_size=BATCH)
    for workers in WORKERS:
        for prefetch in PREFETCH:
            yield TrainConfig(
                batch_size=BATCH, num_workers=workers, prefetch_factor=prefetch, persistent_workers=not restart
            )


def expected_seconds(config: TrainConfig, epoch_batches: int, load_seconds: float, step_seconds: float) -> float:
    """What an epoch takes by arithmetic, workers being there already.

    Args:
        config: Its workers, and how many batches each may prepare in advance.
        epoch_batches: Batches of an epoch.
        load_seconds: That preparing a batch takes.
        step_seconds: That training on it takes.
    """
    workers = config.num_workers
    if not workers:
        return epoch_batches * (load_seconds + step_seconds)
    queue = workers * (config.prefetch_factor or 0)
    ready = [0.0] * epoch_batches  # each batch goes to the next worker
    taken = [0.0] * epoch_batches  # by training, which asks for another one at the same moment
    free = 0.0
    for batch in range(epoch_batches):
        asked = taken[batch - queue] if batch >= queue else 0.0
        idle = ready[batch - workers] if batch >= workers else 0.0
        ready[batch] = max(asked, idle) + load_seconds
        taken[batch] = max(ready[batch], free)
        free = taken[batch] + step_seconds
    return free


def slept(seconds: float, times: int = 100) -> float:
    """What a sleep of so many seconds takes on this machine."""
    began = time.perf_counter()
    for _ in range(times):
        time.sleep(seconds)
    return (time.perf_counter() - began) / times


def true_ratio(before_json: str, after_json: str, epoch_batches: int, seconds: float) -> float:
    """The ratio of two configs by uninterrupted plain loops, in turn, since sleeps take longer in some hours.

    Args:
        before_json: The one.
        after_json: The other.
        epoch_batches: Batches of an epoch.
        seconds: Of training, for each, in all.
    """
    configs = [TrainConfig.model_validate_json(text) for text in (before_json, after_json)]
    each = seconds / TRUTH_TURNS
    spent = [[seconds_a_sample(config, epoch_batches, each) for config in configs] for _ in range(TRUTH_TURNS)]
    before, after = zip(*spent, strict=True)
    return math.fsum(before) / math.fsum(after)


def seconds_a_sample(config: TrainConfig, epoch_batches: int, seconds: float) -> float:
    """Of one uninterrupted plain loop, over whole epochs; within the first where that is longer.

    From the first step of the first epoch to that of the last, so many seconds later at least: each time the epoch's
    first batch has been waited for.
    """
    loop = Loop(build(epoch_batches), config, "cpu")
    longest = epoch_batches * (BATCH * SAMPLE_SECONDS + STEP_SECONDS)
    began, samples, epochs = 0.0, 0, 0
    for count in loop.steps():
        now = time.perf_counter()
        samples += count
        if not began:
            began, samples = now, 0
        elif now - began >= seconds and (loop.epochs > epochs or longest > seconds):
            return (now - began) / samples
        epochs = loop.epochs
    raise AssertionError("the steps have no end")


def claimed(
    runner: ProcessRunner, config: TrainConfig, epoch_batches: int, rounds: int, plan: BurstPlan
) -> dict[str, Any]:
    """The ratio over workers 0, in rounds of duets."""
    parameters: dict[str, Scalar] = {"epoch_batches": epoch_batches}
    before = Point(config=TrainConfig(batch_size=BATCH), parameters=parameters)
    after = Point(config=config, parameters=parameters)
    measured = []
    for _ in range(rounds):
        found = {}
        for burst in runner.play([before, after], plan, DEADLINE_SECONDS):
            if burst.measurement is None:
                raise RuntimeError(f"a burst of {TARGET} ended as {burst.outcome.value}: {burst.reason}")
            found[burst.point] = burst.measurement
        measured.append(found)
    return speedup_in(measured, before, after).model_dump(mode="json")


def compare(epochs: Sequence[int], rounds: int, seconds: float, plan: BurstPlan, restart: bool) -> list[dict[str, Any]]:
    """All configs, with each length of epochs."""
    load, step = BATCH * slept(SAMPLE_SECONDS), slept(STEP_SECONDS)
    rows = []
    with Isolation(TARGET) as isolation:
        isolation.start(60)
        runner = ProcessRunner(isolation, "cpu")
        for epoch_batches in epochs:
            baseline, *others = configs(restart)
            slowest_expected = expected_seconds(baseline, epoch_batches, load, step)
            for config in others:
                sides = (baseline.model_dump_json(), config.model_dump_json())
                true = afresh(true_ratio, *sides, epoch_batches, seconds)
                found = claimed(runner, config, epoch_batches, rounds, plan)
                rows.append(
                    {
                        "epoch_batches": epoch_batches,
                        "num_workers": config.num_workers,
                        "prefetch_factor": config.prefetch_factor,
                        "claimed": found,
                        "true": true,
                        "expected": slowest_expected / expected_seconds(config, epoch_batches, load, step),
                        "error": found["ratio"] / true - 1,
                    }
                )
                print(described(rows[-1]), flush=True)
    return rows


def described(row: dict[str, Any]) -> str:
    """One config's line of the table."""
    low, high = row["claimed"]["ci95"]
    return (
        f"epochs of {row['epoch_batches']:4} batches, {row['num_workers']} workers, prefetch {row['prefetch_factor']}: "
        f"claimed {row['claimed']['ratio']:.3f} × ({low:.3f} – {high:.3f}), true {row['true']:.3f} ×, by arithmetic "
        f"{row['expected']:.3f} ×; error {row['error']:+.1%}{'' if abs(row['error']) <= GOAL else ', NOT within 3 %'}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and saves; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, nargs="+", help="their lengths in batches; 20 and 2000")
    parser.add_argument("--rounds", type=int, help=f"of fresh processes; {ROUNDS}, or {QUICK_ROUNDS} when quick")
    parser.add_argument("--restart", action="store_true", help="workers start again in each epoch")
    parser.add_argument("--quick", action="store_true", help="short and few: a smoke test")
    asked = parser.parse_args(arguments)
    epochs = asked.epochs or (QUICK_EPOCHS if asked.quick else EPOCHS)
    rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS)
    plan, seconds = (
        (QUICK_PLAN, QUICK_TRUTH_SECONDS) if asked.quick else (confirming_plan(BUDGET_SECONDS), TRUTH_SECONDS)
    )
    rows = compare(epochs, rounds, seconds, plan, asked.restart)
    errors = [row["error"] for row in rows]
    figures = {
        "sample_seconds": SAMPLE_SECONDS, "step_seconds": STEP_SECONDS, "batch_size": BATCH, "rounds": rounds,
        "workers_restart": asked.restart, "goal": GOAL, "rows": rows,
    }  # fmt: skip
    within = sum(abs(error) <= GOAL for error in errors)
    print(f"{within} of {len(errors)} within {GOAL:.0%}; in the mean {statistics.fmean(errors):+.1%}")
    print(f"written to {save('known_loader_restart' if asked.restart else 'known_loader', figures)}")
    return int(within < len(errors))


if __name__ == "__main__":
    sys.exit(main())
