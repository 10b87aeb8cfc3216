"""Is a process that is forked from a prepared one as fast as one that starts as training starts?

    python -m benchmarks.forked benchmarks.digits:build benchmarks.charlm:build --rounds 12

The proof's processes are forked from one that has imported torch and the module; training starts in an interpreter of
its own, with a heap of its own. In each round one process of either kind trains the baseline, both alive, in turns as
in the proof. Prints the ratio of their rates, and the standard deviation from process to process; writes
benchmarks/output/forked.json.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from autotune.bursts.hosts.host import Host
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.hosts.running_job import Live
from autotune.bursts.runner import ProcessRunner
from autotune.bursts.turns.duet import LEAST_TURNS, ROUND_TURN_SECONDS, ROUND_WARMUP_SHARE, Duet
from autotune.bursts.turns.player import Player
from autotune.measuring import Point
from benchmarks.output import save, saved
from benchmarks.ratios import paired_ratio

PLAN = BurstPlan(measure_seconds=1.5)
DEADLINE_SECONDS = 120.0
FORKED, FRESH = "forked", "fresh"


class Stopping(Isolation):
    """Stops a job between its turns also where no other one of its own lives: the partner hangs below another."""

    def rest(self, live: Live) -> None:
        """Stops a job with all its processes."""
        self._stop_whole(live)


def rates_of(isolations: dict[str, Isolation], request: Request, seed: int) -> dict[str, float]:
    """One round: samples per second of a process of each kind."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    duet = Duet(PLAN, deadline, seed, 2, turn_seconds=ROUND_TURN_SECONDS, warmup_share=ROUND_WARMUP_SHARE)
    players: dict[str, Player] = {}
    try:
        for name in random.Random(seed).sample(list(isolations), len(isolations)):
            players[name] = Player(Host(isolations[name], request, deadline), request)
            duet.join(players[name], deadline)
        duet.warm_up()
        both, least = list(players.values()), 2 * PLAN.measure_seconds
        duet.take_turns(lambda: duet.played_turns() >= LEAST_TURNS and duet.counted_seconds(both) >= least)
        counted = duet.counted()
        return {name: _rate(player, counted) for name, player in players.items()}
    finally:
        for player in players.values():
            player.host.discard()


def _rate(player: Player, counted: Sequence[int]) -> float:
    blocks = [player.blocks[turn] for turn in counted]
    return sum(block.samples for block in blocks) / sum(player.per_sample(block) * block.samples for block in blocks)


def compare(target: str, rounds: int) -> dict[str, Any]:
    """Some rounds of a workload's baseline."""
    with Stopping(target) as warm, Stopping(target) as cold:
        cold._warm = False
        facts = ProcessRunner(warm, "cpu").check(DEADLINE_SECONDS)
        seen: dict[str, list[float]] = {FORKED: [], FRESH: []}
        for number in range(rounds):
            request = Request(
                job="host", target=target, device="cpu", plan=PLAN, point=Point(config=facts.baseline), seed=number
            )
            for name, rate in rates_of({FORKED: warm, FRESH: cold}, request, number).items():
                seen[name].append(rate)
            print(f"  round {number + 1}: " + ", ".join(f"{name} {rates[-1]:.1f}" for name, rates in seen.items()))
    ratio = paired_ratio(seen[FRESH], seen[FORKED])
    differences = [math.log(a / b) for a, b in zip(seen[FORKED], seen[FRESH], strict=True)]
    spread = statistics.stdev(differences) / math.sqrt(2)
    print(f"{target}: forked over fresh {ratio}; from process to process {spread:.1%}")
    return {"forked_over_fresh": ratio.model_dump(mode="json"), "spread_of_a_process": spread, "rates": seen}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares both kinds on each workload; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", help="workloads, as module:function")
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args(arguments)
    for target in asked.targets:
        known = saved("forked").get("workloads", {})
        print(f"written to {save('forked', {'workloads': {**known, target: compare(target, asked.rounds)}})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
