"""Does a memory that is nearly full widen the interval of a pair? The same two configs at 90 % and at 30 % of a target.

    python -m benchmarks.full_memory              # about three minutes

A workload keeps 600 MB of images in memory, and a step takes as much again. The target is set so that the baseline
takes the one share of it, then the other. In both, the baseline's host plays a config that it can switch to, several
times over. What counts is how wide the interval of their ratio is, and whether one process has played both.

Writes benchmarks/output/full_memory.json.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune import Workload
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.measuring import Point
from benchmarks.output import save

SHARES = (0.9, 0.3)
IMAGES, BATCH = 50_000, 1024
DEADLINE_SECONDS = 60.0


def build() -> Workload:
    """A small CNN on images that are all in memory."""
    data = TensorDataset(torch.rand(IMAGES, 3, 32, 32), torch.randint(0, 10, (IMAGES,)))
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    return Workload(
        model, data, lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]), batch_size=BATCH
    )


def pairs(isolation: Isolation, baseline: Point, limit_bytes: int | None, count: int, seconds: float) -> dict[str, Any]:
    """Challenges of the baseline by the same config under a target, all in the host that the first one started.

    Raises:
        RuntimeError: A config ended, or its blocks were too few for a ratio.
    """
    other = Point(config=baseline.config.replace(optimizer_impl="foreach"))
    plan = BurstPlan(measure_seconds=seconds, fastest_wins=False)
    runner = ProcessRunner(isolation, "cpu", memory_limit_bytes=limit_bytes)
    try:
        ((burst, _),) = runner.challenge(None, [baseline], plan, DEADLINE_SECONDS, lambda *_: None)
        before, widths, ratios = hosts(), [], []
        for _ in range(count):
            ((played, pair),) = runner.challenge(baseline, [other], plan, DEADLINE_SECONDS, lambda *_: None)
            if pair is None or pair.too_few:
                raise RuntimeError(f"{other.changes_text(baseline)} has no ratio: {played.reason}")
            widths.append(math.log(pair.ci95.high / pair.ci95.low))
            ratios.append(pair.ratio)
        same = hosts() == before and len(before) == 1
    finally:
        runner.close()
    if burst.measurement is None:
        raise RuntimeError(f"the baseline ended: {burst.reason}")
    taken, width = burst.measurement.device_memory_bytes, statistics.fmean(widths or [0.0])
    return {"limit_bytes": limit_bytes, "taken_bytes": taken, "width": width, "ratios": ratios, "one_host": same}


def hosts() -> set[int]:
    """Process ids of all that lives right below the forkserver."""
    return {one.pid for child in psutil.Process().children() for one in child.children()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and saves."""
    parser = argparse.ArgumentParser(description="Does a memory that is nearly full widen the interval of a pair?")
    parser.add_argument("--pairs", type=int, default=10, help="challenges at each share")
    parser.add_argument("--seconds", type=float, default=2.0, help="that each side trains in a challenge")
    options = parser.parse_args(arguments)
    with Isolation("benchmarks.full_memory:build") as isolation:
        isolation.start(DEADLINE_SECONDS)
        facts = ProcessRunner(isolation, "cpu").check(DEADLINE_SECONDS)
        baseline = Point(config=facts.baseline.replace(num_threads=1))  # a neighbour stops one thread, not all
        taken = pairs(isolation, baseline, None, 0, options.seconds)["taken_bytes"]
        found = {
            f"{share:.0%}": pairs(isolation, baseline, round(taken / share), options.pairs, options.seconds)
            for share in SHARES
        }
    for share, figures in found.items():
        where = "one host" if figures["one_host"] else "several hosts"
        print(f"at {share} of the target: interval {100 * figures['width']:.2f} % wide, in {where}")
    full, usual = found.values()
    ratio = full["width"] / usual["width"]
    print(f"widths: {ratio:.2f} x")
    print(f"written to {save('full_memory', {'shares': found, 'ratio_of_widths': ratio})}")


if __name__ == "__main__":
    main()
