"""How much larger is the batch that fits, where blocks are computed again in backward, and what does that cost?

    python -m benchmarks.checkpointing          # three minutes

Bursts of the language model with eight layers, without and with checkpointing, each with batches of several sizes.
Memory is that of the process tree, so the loader has no workers; what a process takes before it has a batch is part of
it. Lines through the bursts say which batch takes as much memory with checkpointing as each does without.

Writes benchmarks/output/checkpointing.json. The exit status is 1 when the largest batch, twice as large, takes more
memory with checkpointing than without.
"""

from __future__ import annotations

import sys
from typing import Any

from autotune.bursts.isolation import Isolation
from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.memory_model import fit
from autotune.measuring.records import Point
from benchmarks.output import save

TARGET = "benchmarks.charlm:build"
PARAMETERS = {"layers": 8, "width": 128, "context": 128}
BATCHES = (16, 32, 64, 128)
GOAL = 2.0
DEADLINE_SECONDS = 120.0
PLAN = BurstPlan(warmup_seconds=2.0, measure_seconds=4.0)


def burst(runner: ProcessRunner, checkpointing: str, batch: int) -> dict[str, float]:
    """Memory and rate of one config."""
    config = TrainConfig(batch_size=batch, checkpointing=checkpointing)  # type: ignore[arg-type]
    found = runner.run(Point(config=config, parameters=dict(PARAMETERS)), PLAN, DEADLINE_SECONDS)
    measured = found.measurement
    if measured is None or measured.device_memory_bytes is None:
        raise SystemExit(f"batch {batch}, checkpointing={checkpointing}: {found.reason}")
    return {"batch": batch, "bytes": measured.device_memory_bytes, "samples_per_second": measured.samples_per_second}


def main() -> int:
    """Entry; returns the exit status."""
    with Isolation(TARGET) as isolation:
        isolation.start(DEADLINE_SECONDS)
        runner = ProcessRunner(isolation, "cpu", seed=0, memory_limit_bytes=None)
        burst(runner, "none", BATCHES[0])  # what is loaded on first use is in memory from here on
        sides = {
            checkpointing: [burst(runner, checkpointing, batch) for batch in (*BATCHES, round(GOAL * BATCHES[-1]))]
            for checkpointing in ("none", "blocks")
        }
    plain, again = sides["none"], sides["blocks"]
    lines = {
        name: fit({int(one["batch"]): one["bytes"] for one in side}, None, sys.maxsize) for name, side in sides.items()
    }
    rows: list[dict[str, Any]] = []
    for mine, theirs in zip(plain, again, strict=True):
        room = mine["bytes"] - lines["blocks"].base_bytes
        rows.append(
            {
                "batch": mine["batch"],
                "bytes": mine["bytes"],
                "bytes_with": theirs["bytes"],
                "rate_with_over_without": theirs["samples_per_second"] / mine["samples_per_second"],
                "batch_in_same_memory": int(room / lines["blocks"].sample_bytes),
            }
        )
        print(rows[-1], flush=True)
    fits = again[-1]["bytes"] <= plain[-2]["bytes"]
    samples = {name: line.sample_bytes for name, line in lines.items()}
    print(f"written to {save('checkpointing', {'goal': GOAL, 'sample_bytes': samples, 'sides': sides, 'rows': rows})}")
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
