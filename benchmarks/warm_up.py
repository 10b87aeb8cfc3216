"""How long do processes warm up, and where is their beginning cut off? Rate against time, for ten workloads.

    python -m benchmarks.warm_up                       # ten minutes
    python -m benchmarks.warm_up digits texts --seconds 20

Of each workload, the baseline and the baseline with the tuned allocator (whose memory warms up otherwise) play a duet
in fresh processes, as a confirmation begins, but for longer. After as many turns as a round has, the duet is asked
where it cuts; then both train on, and what the second half of the whole says is taken to be warm. So each workload
shows three figures: the ratio of what a round would have counted, of what it would have counted without a cut, and of
the second half.

Time is that of the process itself, from its start on: when it is stopped, its clock stands still.
Writes benchmarks/output/warm_up.json and warm_up.svg.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from autotune.bursts.hosts.host import Host
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.runner import ProcessRunner
from autotune.bursts.turns.duet import LEAST_TURNS, Duet
from autotune.bursts.turns.player import Player
from autotune.measuring import Block, Measurement, Point
from autotune.search.stopping import confirming_plan
from benchmarks.output import save
from benchmarks.warm_up_plot import write_plot

WORKLOADS = {
    "digits": "benchmarks.digits:build",
    "charlm": "benchmarks.charlm:build",
    "gates": "benchmarks.gates:build",
    "texts": "benchmarks.texts:build",
    "known_loader": "benchmarks.known_loader:build",
    "landmarks_finetune": "benchmarks.guides.landmarks_finetune:build",
    "cnn_lstm": "benchmarks.guides.cnn_lstm:build",
    "asl_transformer": "benchmarks.guides.asl_transformer:build",
    "ctc_tips": "benchmarks.guides.ctc_tips:build",
    "lm_pretrain": "benchmarks.guides.lm_pretrain:build",
}
SIDES = ("baseline", "allocator=tuned")
BUDGET_SECONDS = 120.0
SECONDS = 20.0
START_SECONDS = 120.0


def recorded(target: str, seconds: float, plan: BurstPlan) -> dict[str, Any]:
    """One duet: all blocks of both sides, and where it would have cut.

    Args:
        target: The workload.
        seconds: That each side trains after the turns that only size the blocks.
        plan: Of a round.
    """
    with Isolation(target) as isolation:
        isolation.start(START_SECONDS)
        baseline = Point(config=ProcessRunner(isolation, "cpu").check(START_SECONDS).baseline)
        points = (baseline, baseline.changed({"allocator": "tuned"}))
        deadline = time.monotonic() + START_SECONDS + 6 * seconds
        duet = Duet(plan, deadline, 0, ends=2)
        counted: list[int] = []

        def enough() -> bool:
            spent = duet.counted_seconds(duet.players) / len(duet.players)
            if not counted and duet.played_turns() >= LEAST_TURNS and spent >= plan.measure_seconds:
                counted.extend(duet.counted())
            return bool(counted) and spent >= seconds

        try:
            for point in points:
                request = Request(job="host", target=target, device="cpu", point=point, plan=plan)
                duet.join(Player(Host(isolation, request, deadline), request), deadline)
            duet.take_turns(enough)
            for player in duet.standing:
                player.report(deadline, leaves=True)
        finally:
            for player in duet.players:
                player.host.discard()
    measured = [_measurement(target, player) for player in duet.players]
    return described(measured, counted or duet.counted())


def _measurement(target: str, player: Player) -> Measurement:
    burst = player.burst(range(len(player.blocks)))
    if burst.measurement is None:
        raise RuntimeError(f"a player of {target} {burst.ending}")
    return burst.measurement


def described(measured: Sequence[Measurement], counted: Sequence[int]) -> dict[str, Any]:
    """What is written of a workload.

    Args:
        measured: Both sides, with all their blocks.
        counted: The blocks that a round would have counted; it would have ended after the last.
    """
    first, second = (one.blocks for one in measured)
    cut, end = counted[0], counted[-1] + 1
    half = min(len(first), len(second)) // 2
    sides: list[dict[str, Any]] = []
    for name, one in zip(SIDES, measured, strict=True):
        opening = one.start_seconds + one.build_seconds + one.warmup_seconds
        sides.append(
            {
                "name": name,
                "opening_seconds": opening,
                "block_ends": [
                    round(passed, 4)
                    for passed in itertools.accumulate((block.seconds for block in one.blocks), initial=opening)
                ][1:],
                "rates": [round(rate, 3) for rate in one.block_rates],
                "warm_rate": _rate(one.blocks[half:]),
            }
        )
    return {
        "cut": cut,
        "end": end,
        "counted": list(counted),
        "cut_seconds": [side["block_ends"][cut - 1] if cut else side["opening_seconds"] for side in sides],
        "ratio": _ratio([first[block] for block in counted], [second[block] for block in counted]),
        "ratio_without_cut": _ratio(first[:end], second[:end]),
        "ratio_when_warm": _ratio(first[half:], second[half:]),
        "sides": sides,
    }


def _rate(blocks: Sequence[Block]) -> float:
    return sum(block.samples for block in blocks) / math.fsum(block.seconds for block in blocks)


def _ratio(before: Sequence[Block], after: Sequence[Block]) -> float:
    return _rate(after) / _rate(before)


def off(row: dict[str, Any], which: str) -> float:
    """How far a ratio is from that of the second half."""
    return float(row[which] / row["ratio_when_warm"] - 1)


def line(name: str, row: dict[str, Any]) -> str:
    """One workload's figures."""
    cuts = " and ".join(f"{seconds:.1f} s" for seconds in row["cut_seconds"])
    return (
        f"{name:20} cut {row['cut']} of {row['end']} blocks, {cuts} after the start; ratio {row['ratio']:.3f} "
        f"({off(row, 'ratio'):+.1%}), without a cut {row['ratio_without_cut']:.3f} "
        f"({off(row, 'ratio_without_cut'):+.1%}), when warm {row['ratio_when_warm']:.3f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, prints, saves and draws; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], metavar="workload", help=", ".join(WORKLOADS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of training, for each side")
    asked = parser.parse_args(arguments)
    rows: dict[str, dict[str, Any]] = {}
    plan = confirming_plan(BUDGET_SECONDS)
    for name in asked.workloads or WORKLOADS:
        print(f"{name} …", file=sys.stderr)
        rows[name] = recorded(WORKLOADS[name], asked.seconds, plan)
        print(line(name, rows[name]), flush=True)
    offs = {which: [abs(off(row, which)) for row in rows.values()] for which in ("ratio", "ratio_without_cut")}
    means = {which: statistics.fmean(values) for which, values in offs.items()}
    print(f"off in the mean: {means['ratio']:.1%} with the cut, {means['ratio_without_cut']:.1%} without")
    figures = {"seconds": asked.seconds, "plan": plan.model_dump(mode="json"), "mean_off": means, "workloads": rows}
    print(f"written to {save('warm_up', figures)} and {write_plot(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
