"""How much larger is the batch that fits, where blocks are computed again in backward, and what does that cost?

    python -m benchmarks.checkpointing          # two minutes

The language model with eight layers takes a few steps, without and with checkpointing, with batches of several sizes,
each in a process of its own. Memory is the highest resident one of the process, its libraries included; what is freed
goes back to the system. All is computed
by one thread, and the rate is that of the processor's seconds, so that what else runs on the machine hardly counts.
Lines through the memory say which batch takes as much with checkpointing as each does without.

Writes benchmarks/output/checkpointing.json. The exit status is 1 when a batch twice as large takes more memory with
checkpointing than without.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

import torch

from autotune import TrainConfig
from autotune.measuring.memory_model import fit
from autotune.training.tuned import Tuned
from benchmarks import charlm
from benchmarks.fresh import afresh
from benchmarks.output import save

LAYERS = 8
BATCHES = (8, 16, 32, 64)
STEPS = 3
GOAL = 2
MAPPED_BYTES = 2**16
"""What is larger goes back to the system when it is freed: by its own rules glibc keeps holes, which would count."""


def train(checkpointing: str, batch: int) -> dict[str, float]:
    """Memory and rate of some steps, in this process; the first, in which the optimizer allocates, is not timed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workload = charlm.build(layers=LAYERS)
    optimizer = workload.make_optimizer()
    config = TrainConfig(batch_size=batch, checkpointing=checkpointing)  # type: ignore[arg-type]
    model, _ = Tuned(config).prepare(workload.model, optimizer)
    model.train()
    tokens = torch.randint(0, charlm.VOCABULARY, (batch, 128))
    began = 0.0
    for number in range(1 + STEPS):
        if number == 1:
            began = sum(os.times()[:2])
        workload.loss(model, (tokens, tokens)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    seconds = sum(os.times()[:2]) - began
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"batch": batch, "bytes": peak, "samples_per_second": STEPS * batch / seconds}


def main() -> int:
    """Entry; returns the exit status."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(MAPPED_BYTES)
    sides = {side: [afresh(train, side, batch) for batch in BATCHES] for side in ("none", "blocks")}
    lines = {
        side: fit({int(one["batch"]): one["bytes"] for one in found}, None, sys.maxsize)
        for side, found in sides.items()
    }
    rows: list[dict[str, Any]] = []
    for without, having in zip(*sides.values(), strict=True):
        room = without["bytes"] - lines["blocks"].base_bytes
        rows.append(
            {
                "batch": without["batch"],
                "bytes": without["bytes"],
                "bytes_with": having["bytes"],
                "rate_with_over_without": having["samples_per_second"] / without["samples_per_second"],
                "batch_in_same_memory": int(room / lines["blocks"].sample_bytes),
            }
        )
        print(rows[-1], flush=True)
    fits = sides["blocks"][-1]["bytes"] <= sides["none"][-2]["bytes"]
    samples = {side: line.sample_bytes for side, line in lines.items()}
    print(f"written to {save('checkpointing', {'goal': GOAL, 'sample_bytes': samples, 'sides': sides, 'rows': rows})}")
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
