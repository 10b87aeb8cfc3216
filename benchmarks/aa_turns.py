"""How much slower short turns are than training without interruption, because each finds caches cold.

Two processes train the same config in the independent loop, in turns of all lengths, in random order: whatever else the
machine does meets all lengths alike.
"""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any

from autotune.knobs.config import TrainConfig
from autotune.results.result import Side
from benchmarks.alternate import WARMUP_SECONDS, Alternating
from benchmarks.ratios import paired_ratio
from benchmarks.trainee import Request

BLOCK_SECONDS = (0.05, 0.1, 0.3, 1.0)
UNINTERRUPTED_SECONDS = 5.0
EACH_SECONDS = 1.0
"""That a side trains in short turns of one length, before another length is tried."""


def turn_lengths(
    target: str, config: TrainConfig, cycles: int, warmup_seconds: float = WARMUP_SECONDS
) -> list[dict[str, Any]]:
    """The rate in turns of each length, over that without interruption.

    Args:
        target: The workload.
        config: Of both processes.
        cycles: How often each length is tried, two at least.
        warmup_seconds: Of each process.
    """
    side = Side(config=config, measurement=None).model_dump_json()
    rng = random.Random(0)
    lengths = (*BLOCK_SECONDS, UNINTERRUPTED_SECONDS)
    rates: dict[float, list[float]] = {length: [] for length in lengths}
    seconds: dict[float, list[float]] = {length: [] for length in lengths}
    with contextlib.ExitStack() as stack:
        pair = [stack.enter_context(Alternating(Request(target, side, "cpu", seed, warmup_seconds))) for seed in (0, 1)]
        for one in pair:
            one.warm_up()
        rate = sum(one.ready.samples_per_second for one in pair) / len(pair)
        step = config.effective_batch
        for cycle in range(cycles):
            for length in rng.sample(lengths, k=len(lengths)):
                size = step * max(1, round(length * rate / step))
                order = [one for _ in range(max(1, round(EACH_SECONDS / length))) for one in rng.sample(pair, k=2)]
                turns = [one.take_turn(size) for one in order]
                spent = sum(turn.seconds for turn in turns)
                rates[length].append(sum(turn.samples for turn in turns) / spent)
                seconds[length].append(spent / len(turns))
            print(f"  cycle {cycle + 1} of {cycles}", file=sys.stderr)
    return [
        {
            "turn_seconds": length,
            "measured_turn_seconds": sum(seconds[length]) / cycles,
            "over_uninterrupted": paired_ratio(rates[UNINTERRUPTED_SECONDS], rates[length]).model_dump(mode="json"),
            "samples_per_second": rates[length],
        }
        for length in BLOCK_SECONDS
    ]
