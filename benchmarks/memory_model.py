"""How well is the largest batch predicted? Two small bursts and a line, against bisection with real bursts.

    python -m benchmarks.memory_model          # ten minutes

For each workload and precision, two small batches are run and the model is fitted; the target is then set so that a
batch of several times their size fits. As the search does, the predicted batch less its margin is run, and the model
fitted again with what came of it, six times at most. Bisection finds the largest batch whose burst really stays under
the target: above, the burst ends as out of memory. Memory is that of the process tree, so the loader has no workers.
Predicted is where the line meets the target, below what ran out, at first and in the end; the margin that is kept is
told apart.

Writes benchmarks/output/memory_model.json. The exit status is 1 when an error is above 5 %.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.memory_model import Line, MemoryModel
from autotune.measuring.records import Burst, Point
from benchmarks.output import save

GOAL = 0.05
CASES = (
    ("benchmarks.digits:build", 64, "fp32"),
    ("benchmarks.digits:build", 64, "bf16"),
    ("benchmarks.charlm:build", 16, "fp32"),
    ("benchmarks.gates:build", 512, "fp32"),
    ("benchmarks.guides.landmarks_finetune:build", 6, "fp32"),
)
REFITS = 6
MAJORITY_OF = 5
LARGEST = 8
"""The target is what a batch of so many times the first is expected to take, and a little more."""
RESOLUTION = 0.01
DEADLINE_SECONDS = 120.0
PLAN = BurstPlan(measure_seconds=0.5)


def run(isolation: Isolation, config: TrainConfig, limit_bytes: int | None = None) -> Burst:
    """A burst under a memory target."""
    runner = ProcessRunner(isolation, "cpu", seed=0, memory_limit_bytes=limit_bytes)
    return runner.run(Point(config=config), PLAN, DEADLINE_SECONDS)


def largest_that_fits(isolation: Isolation, config: TrainConfig, limit_bytes: int, fits: int, fails: int) -> int:
    """By bisection, to 1 %.

    Args:
        isolation: Runs the bursts.
        config: Its batch size is varied.
        limit_bytes: The target.
        fits: A batch that fits.
        fails: One that does not.
    """
    while fails - fits > max(1, RESOLUTION * fits):
        middle = (fits + fails) // 2
        if stays_under(isolation, config.replace(batch_size=middle), limit_bytes):
            fits = middle
        else:
            fails = middle
    return fits


def stays_under(isolation: Isolation, config: TrainConfig, limit_bytes: int) -> bool:
    """Whether most bursts of a config do: a process's heap differs from run to run by some per cent."""
    ended: Counter[bool] = Counter()
    while max(ended.values(), default=0) <= MAJORITY_OF // 2:
        ended[run(isolation, config, limit_bytes).ok] += 1
    return ended[True] > ended[False]


def fitted(bursts: Sequence[Burst], config: TrainConfig, limit_bytes: int) -> Line:
    """The line through what has been run."""
    line = MemoryModel(bursts, limit_bytes, "cpu").line(Point(config=config))
    if line is None:
        raise SystemExit(f"no line through {[burst.reason for burst in bursts]}")
    return line


def largest_expected(line: Line, limit_bytes: int, bursts: Sequence[Burst]) -> int:
    """The batch at which a line meets a limit, below the smallest that ran out of memory."""
    met = round((limit_bytes - line.base_bytes) / line.sample_bytes)
    return min([met, *(burst.point.config.batch_size - 1 for burst in bursts if not burst.ok)])


def measure(target: str, batch: int, precision: str) -> dict[str, Any]:
    """Predicted against true, for one case."""
    config = TrainConfig(batch_size=batch, precision=precision, allocator="default")  # type: ignore[arg-type]
    with Isolation(target) as isolation:
        isolation.start(DEADLINE_SECONDS)
        run(isolation, config)  # what is loaded on first use is in memory from here on
        bursts = [run(isolation, config.replace(batch_size=size)) for size in (batch, 2 * batch)]
        line = fitted(bursts, config, sys.maxsize)
        limit_bytes = round(line.bytes_at(LARGEST * batch + batch // 3))
        first = largest_expected(line, limit_bytes, bursts)
        for _ in range(REFITS):
            next_batch = line.largest_batch(limit_bytes)
            if next_batch is None or any(burst.point.config.batch_size == next_batch for burst in bursts):
                break
            bursts.append(run(isolation, config.replace(batch_size=next_batch), limit_bytes))
            line = fitted(bursts, config, limit_bytes)
        predicted = largest_expected(line, limit_bytes, bursts)
        fits = largest_that_fits(isolation, config, limit_bytes, batch, 4 * LARGEST * batch)
    return {
        "workload": target,
        "precision": precision,
        "batches": [batch, 2 * batch],
        "target_bytes": limit_bytes,
        "base_bytes": round(line.base_bytes),
        "sample_bytes": round(line.sample_bytes),
        "predicted_at_first": first,
        "ooms": sum(not burst.ok for burst in bursts),
        "predicted": predicted,
        "with_margin": line.largest_batch(limit_bytes),
        "largest": fits,
        "error_at_first": first / fits - 1,
        "error": predicted / fits - 1,
    }


def main() -> int:
    """Entry; returns the exit status."""
    found = []
    for target, batch, precision in CASES:
        case = measure(target, batch, precision)
        found.append(case)
        before, after = (f"{case[key]:+.1%}" for key in ("error_at_first", "error"))
        print(
            f"{target} {precision}: true {case['largest']}, predicted {case['predicted_at_first']} ({before}), at last "
            f"{case['predicted']} ({after}), with margin {case['with_margin']}",
            flush=True,
        )
    print(f"written to {save('memory_model', {'goal': GOAL, 'cases': found})}")
    return 0 if all(abs(case["error"]) <= GOAL for case in found) else 1


if __name__ == "__main__":
    sys.exit(main())
