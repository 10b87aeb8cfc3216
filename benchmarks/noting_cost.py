"""What noting a training's rate costs each step, and each note.

    python -m benchmarks.noting_cost        # some seconds

Passes that draw batches which are there already alternate with passes that note the draws, and call what torch calls
after each step. The difference of their processor time is what a step costs. A note is what is written at an epoch's
end, for this very process.

Writes benchmarks/output/noting_cost.json. The exit status is 1 when noting costs more than a thousandth of a training
with steps of a millisecond.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from autotune.recorder import realised
from benchmarks.output import save

STEPS, PASSES, NOTES = 5_000, 200, 10
STEP_SECONDS, GOAL = 1e-3, 1e-3


def measured(file: Path) -> dict[str, Any]:
    """Seconds that a step costs, and a note."""
    order: realised.Order = {"path": str(file), "result": "", "cpu": None, "cpus": 1, "step_samples": None}
    notes = realised.Notes(order, torch.device("cpu"))
    batch, stepped = torch.zeros(16, 4), notes.stepped
    costs, written = [], []
    for _ in range(PASSES):
        began = time.thread_time()
        for _ in itertools.repeat(batch, STEPS):
            pass
        drawn = time.thread_time()
        notes.due = float("-inf")
        reading = realised.Reading(time.perf_counter(), 16, None)
        for _ in realised.CountedBatches(itertools.repeat(batch, STEPS), reading, notes):
            stepped(None, (), {})
        costs.append((time.thread_time() - drawn - (drawn - began)) / STEPS)
    for _ in range(NOTES):
        notes._samples, notes._seconds = 1, 1.0
        began = time.perf_counter()
        notes._note()
        written.append(time.perf_counter() - began)
    if len(file.read_text().splitlines()) < NOTES:
        raise SystemExit("expected a line for each note, but noting has ended early")
    quarters = statistics.quantiles(costs)
    return {
        "step_seconds": quarters[1],
        "quartiles": [quarters[0], quarters[2]],
        "note_seconds": statistics.median(written),
    }


def main() -> int:
    """Entry; returns the exit status."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder) / "notes.jsonl")
    share = found["step_seconds"] / STEP_SECONDS + min(
        realised.COST_SHARE, found["note_seconds"] / realised.LEAST_SECONDS
    )
    low, high = (1e6 * end for end in found["quartiles"])
    print(f"a step: {1e6 * found['step_seconds']:.2f} us (quartiles {low:.2f}, {high:.2f})")
    print(f"a note: {1e3 * found['note_seconds']:.1f} ms")
    print(f"of a training with steps of 1 ms: {share:.3%}")
    print(f"written to {save('noting_cost', {'goal': GOAL, 'share': share, **found})}")
    return int(share > GOAL)


if __name__ == "__main__":
    sys.exit(main())
