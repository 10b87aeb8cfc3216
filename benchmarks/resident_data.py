"""What is a data set worth that is collated once? Trained in the independent loop, beside torch's loader.

    python -m benchmarks.resident_data                    # a quarter of an hour
    python -m benchmarks.resident_data --only table       # five minutes

Three workloads whose samples are always the same and fit into memory: the digits as they are scanned, with the small
network that such images need; rows of a table in a TensorDataset; and the digits with the large network of
benchmarks.digits, where computing is the limit, so that little can be gained. Sides: no workers, two workers that
persist, and the whole set collated once, each with one thread: for small networks more only wait for each other. They
take turns in `benchmarks.alternate`, whose loop (`benchmarks.plain`) collates and indexes by means of its own. Beside
that stands what autotune claims, by duets.

Writes benchmarks/output/resident_data.json. The exit status is 1 when neither of the first two is 1.3 × as fast.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from autotune import TrainConfig, Workload
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.measuring import Point
from autotune.results.result import Side
from autotune.search.stopping import confirming_plan
from benchmarks import digits as scans
from benchmarks.alternate import Run, realise
from benchmarks.output import save, saved
from benchmarks.ratios import paired_ratio, speedup_in

TARGETS = {"digits": "small_digits", "table": "table", "digits, large network": "large_digits"}
LOADER_BOUND = ("digits", "table")
BATCH = 64
ROWS, COLUMNS, CLASSES, WIDTH = 50_000, 54, 7, 64
ROUNDS, SECONDS = 6, 18.0
BUDGET_SECONDS, DEADLINE_SECONDS = 120.0, 120.0
GOAL = 1.3


def small_digits() -> Workload:
    """The digits as they are, and a network of two small convolutions."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip
    dataset = scans.Digits(train=True, augment=False)
    return Workload(model, dataset, scans.loss, batch_size=BATCH, name="digits, not augmented")


def large_digits() -> Workload:
    """The digits as they are, and the network of `benchmarks.digits`."""
    return scans.build(augment=False)


def table() -> Workload:
    """Rows of numbers, about as many as people keep in memory, in classes that a linear rule makes."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(ROWS, COLUMNS, generator=generator)
    labels = (features @ torch.randn(COLUMNS, CLASSES, generator=generator)).argmax(1)
    layers = (nn.Linear(COLUMNS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    return Workload(nn.Sequential(*layers), TensorDataset(features, labels), loss, batch_size=BATCH, name="table")


def sides() -> dict[str, TrainConfig]:
    """What is trained with."""
    baseline = TrainConfig(batch_size=BATCH, num_threads=1)
    workers = baseline.replace(num_workers=2, prefetch_factor=4, persistent_workers=True)
    return {"loader": baseline, "2 workers": workers, "collated": baseline.replace(data_placement="collated")}


def realised(target: str, rounds: int, seconds: float) -> dict[str, list[Run]]:
    """All sides in the independent loop, in turns."""
    asked = {name: Side(config=config, measurement=None) for name, config in sides().items()}
    return realise(target, asked, "cpu", seconds, rounds)


def claimed(target: str, rounds: int, plan: BurstPlan) -> tuple[dict[str, Any], float]:
    """What autotune says of the collated set over the baseline, and the seconds that collating it takes."""
    before, after = (Point(config=sides()[name]) for name in ("loader", "collated"))
    measured = []
    with Isolation(target) as isolation:
        isolation.start(60)
        runner = ProcessRunner(isolation, "cpu")
        for _ in range(rounds):
            found = {}
            for burst in runner.play([before, after], plan, DEADLINE_SECONDS):
                if burst.measurement is None:
                    raise RuntimeError(f"a burst of {target} ended as {burst.outcome.value}: {burst.reason}")
                found[burst.point] = burst.measurement
            measured.append(found)
    once = statistics.median(round_[after].placement_seconds or 0.0 for round_ in measured)
    return speedup_in(measured, before, after).model_dump(mode="json"), once


def row(name: str, rounds: int, seconds: float, plan: BurstPlan) -> dict[str, Any]:
    """One workload."""
    target = f"benchmarks.resident_data:{TARGETS[name]}"
    runs = realised(target, rounds, seconds)
    rates = {side: [run.samples_per_second for run in its] for side, its in runs.items()}
    says, once = claimed(target, rounds, plan)
    fastest = max(("loader", "2 workers"), key=lambda side: math.fsum(map(math.log, rates[side])))
    return {
        "workload": name,
        "samples_per_second": {side: statistics.median(its) for side, its in rates.items()},
        "collated_over_loader": paired_ratio(rates["loader"], rates["collated"]).model_dump(mode="json"),
        "collated_over_fastest_loader": paired_ratio(rates[fastest], rates["collated"]).model_dump(mode="json"),
        "fastest_loader": fastest,
        "claimed": says,
        "placement_seconds": once,
        "rounds": rounds,
        "seconds": seconds,
        "foreign_cpu_fraction": statistics.median(run.foreign_cpu_fraction or 0.0 for run in runs["loader"]),
    }


def described(found: dict[str, Any]) -> str:
    """One workload's line."""
    over, fastest, says = (found[name] for name in ("collated_over_loader", "collated_over_fastest_loader", "claimed"))

    def text(ratio: dict[str, Any]) -> str:
        return f"{ratio['ratio']:.2f} × ({ratio['ci95'][0]:.2f} – {ratio['ci95'][1]:.2f})"

    return (
        f"{found['workload']}: collated once {text(over)} the loader without workers, claimed {text(says)}; "
        f"{text(fastest)} the fastest loader ({found['fastest_loader']}); collating takes "
        f"{found['placement_seconds']:.2f} s, once"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and saves; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TARGETS, help="workloads; what is known of the others is kept")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of fresh processes; {ROUNDS}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"that each side trains in all; {SECONDS:g}")
    asked = parser.parse_args(arguments)
    plan = confirming_plan(BUDGET_SECONDS)
    rows = {one["workload"]: one for one in saved("resident_data").get("rows", [])}
    for name in asked.only or TARGETS:
        rows[name] = row(name, asked.rounds, asked.seconds, plan)
        known = [rows[one] for one in TARGETS if one in rows]
        path = save("resident_data", {"batch_size": BATCH, "goal": GOAL, "rows": known})
        print(f"{described(rows[name])}; written to {path}", flush=True)
    reached = [
        one["collated_over_fastest_loader"]["ratio"] >= GOAL for one in rows.values() if one["workload"] in LOADER_BOUND
    ]
    return int(not any(reached))


if __name__ == "__main__":
    sys.exit(main())
