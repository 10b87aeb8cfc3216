"""Does it matter what a host has played before? The same pair in one host, in two hosts, and in fresh processes.

    python -m benchmarks.host_history                         # four workloads, about forty minutes
    python -m benchmarks.host_history charlm texts --seconds 2 --values precision=bf16 num_threads=1

For each value of a knob of scope ``live`` or ``loader`` that is worth trying here, the baseline and the baseline with
that value train the same samples in turn:

- in one host, with the baseline under a second name and all other values beside them;
- in two hosts, each of which has played the baseline and the value before;
- in two processes that have never played anything else, of which there are several pairs.

glibc's malloc keeps freed memory in all of them, as in every host. What the default does is shown beside: the
baseline's rate with the tuned allocator over that with the default one, in fresh processes.

A knob whose ratios differ by more than 2 % and by more than chance does not belong into a host. Writes
benchmarks/output/host_history.json after each workload; the other workloads in it stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
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
from autotune.bursts.runner import ProcessRunner
from autotune.bursts.turns.duet import ROUND_TURN_SECONDS, Duet
from autotune.bursts.turns.player import Player
from autotune.hardware import probe_host
from autotune.knobs import KNOBS, build_space
from autotune.measuring import Point
from benchmarks.output import save, saved
from benchmarks.ratios import Ratio, paired_ratio
from benchmarks.warm_up import WORKLOADS

CHOSEN = ("digits", "charlm", "texts", "landmarks_finetune")
START_SECONDS = 120.0
BESIDE = 4
"""Values that play in one host at a time, beside the baseline and itself under another name."""
PAIRS = 3
"""Of fresh processes, for each value: processes of one config differ by a per cent or so."""
TOLERANCE = 0.02


class Setting:
    """A workload whose processes can be started.

    Attributes:
        baseline: What is trained by default.
        points: The baseline with each value of a knob that a host can switch, by name.
    """

    def __init__(self, isolation: Isolation, target: str, seconds: float) -> None:
        isolation.start(START_SECONDS)
        runner = ProcessRunner(isolation, "cpu")
        facts = runner.check(START_SECONDS)
        self._isolation, self._target, self._seconds = isolation, target, seconds
        self.baseline = Point(config=facts.baseline)
        space = build_space(probe_host(), facts, device="cpu", effective_batch=facts.baseline.effective_batch)
        self.points = {
            f"{name}={value}": Point(config=space.changed(space.baseline, {name: value}))
            for name, choices in space.choices.items()
            if KNOBS[name].scope in {"live", "loader"}
            for value in choices.values
            if value != getattr(space.baseline, name)
        }

    def host(self, point: Point, *, steady_malloc: bool = True) -> Host:
        """A new process that begins with a point."""
        request = self.request(point).model_copy(update={"steady_malloc": steady_malloc})
        return Host(self._isolation, request, time.monotonic() + START_SECONDS)

    def request(self, point: Point) -> Request:
        """A player of a point."""
        plan = BurstPlan(measure_seconds=self._seconds)
        return Request(job="host", target=self._target, device="cpu", point=point, plan=plan, steady_malloc=True)

    def play(self, players: Sequence[Player], seed: int) -> list[list[float]]:
        """Seconds of a sample of each player, in the turns that count."""
        plan = BurstPlan(measure_seconds=self._seconds)
        duet = Duet(plan, time.monotonic() + 60 * self._seconds, seed, ends=0, turn_seconds=ROUND_TURN_SECONDS)
        for player in players:
            duet.join(player, time.monotonic() + START_SECONDS)
        duet.warm_up()
        duet.take_turns(lambda: duet.counted_seconds(duet.standing) >= len(players) * self._seconds)
        ended = [player.ended for player in players if player.ended is not None]
        if ended:
            raise RuntimeError(f"a player ended: {ended[0]}")
        turns = duet.counted()
        return [[player.per_sample(player.blocks[turn]) for turn in turns] for player in players]

    def beside(self, names: Sequence[str]) -> dict[str, Ratio]:
        """In one host: the baseline again, and some values."""
        host = self.host(self.baseline)
        with contextlib.closing(_Ending([host])):
            points = [self.baseline, self.baseline, *(self.points[name] for name in names)]
            base, *others = self.play([Player(host, self.request(point)) for point in points], seed=0)
        return {name: paired_ratio(other, base) for name, other in zip(["again", *names], others, strict=True)}

    def apart(self, name: str) -> Ratio:
        """In two hosts that have played both before."""
        hosts = [self.host(self.baseline), self.host(self.points[name])]
        with contextlib.closing(_Ending(hosts)):
            swapped = [self.points[name], self.baseline]
            for host, first, second in zip(hosts, reversed(swapped), swapped, strict=True):
                self.play([Player(host, self.request(first)), Player(host, self.request(second))], seed=1)
            players = [Player(hosts[0], self.request(self.baseline)), Player(hosts[1], self.request(self.points[name]))]
            base, other = self.play(players, seed=2)
        return paired_ratio(other, base)

    def fresh(self, first: tuple[Point, bool], second: tuple[Point, bool], seed: int) -> Ratio:
        """In two processes that have never played anything else; with glibc's malloc kept steady, or not."""
        order = [first, second]
        random.Random(seed).shuffle(order)
        hosts = {one: self.host(one[0], steady_malloc=one[1]) for one in order}
        with contextlib.closing(_Ending(list(hosts.values()))):
            players = {one: Player(host, host.request) for one, host in hosts.items()}
            told = dict(zip(order, self.play([players[one] for one in order], seed), strict=True))
        return paired_ratio(told[second], told[first])


class _Ending:
    """Ends hosts."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts

    def close(self) -> None:
        """Kills them."""
        for host in self._hosts:
            host.discard()


def measured(target: str, seconds: float, values: Sequence[str] | None) -> dict[str, Any]:
    """Some values of a workload, all when None."""
    with Isolation(target) as isolation:
        setting = Setting(isolation, target, seconds)
        names = [name for name in setting.points if values is None or name in values]
        one: dict[str, Ratio] = {}
        again = []
        for first in range(0, len(names), BESIDE):
            found = setting.beside(names[first : first + BESIDE])
            again.append(found.pop("again"))
            one |= found
        rows = []
        for name in names:
            pair = ((setting.baseline, True), (setting.points[name], True))
            fresh = [setting.fresh(*pair, seed) for seed in range(PAIRS)]
            rows.append(row(name, one[name], setting.apart(name), fresh))
            print("  " + text(rows[-1]), flush=True)
        malloc = [
            setting.fresh((setting.baseline, False), (setting.baseline, True), seed).ratio for seed in range(PAIRS)
        ]
    print(f"  again: {', '.join(map(str, again))}; tuned over default allocator: {_mean(malloc):.3f}")
    return {
        "machine": probe_host().slug,
        "seconds": seconds,
        "again": [one.model_dump() for one in again],
        "tuned_over_default_allocator": malloc,
        "values": rows,
    }


def row(name: str, one: Ratio, two: Ratio, fresh: Sequence[Ratio]) -> dict[str, Any]:
    """What is known of a value: by how much one host and two differ from fresh processes, and by chance at most."""
    logs = [math.log(ratio.ratio) for ratio in fresh]
    centre = statistics.fmean(logs)
    # Of few pairs, what differs between processes and what scatters within them are both in their spread.
    chance = 2 * math.hypot(statistics.stdev(logs) / math.sqrt(len(logs)), _error(one))
    difference = math.log(one.ratio) - centre
    return {
        "value": name,
        "one_host": one.model_dump(),
        "two_hosts": two.model_dump(),
        "fresh_processes": [ratio.model_dump() for ratio in fresh],
        "difference": difference,
        "chance": chance,
        "holds": abs(difference) <= max(TOLERANCE, chance),
        "within_2_percent": abs(difference) <= TOLERANCE,
    }


def text(found: dict[str, Any]) -> str:
    """One line."""
    fresh = _mean([ratio["ratio"] for ratio in found["fresh_processes"]])
    one, two = found["one_host"]["ratio"], found["two_hosts"]["ratio"]
    verdict = "" if found["within_2_percent"] else "  above 2 %" if found["holds"] else "  DIFFERS"
    return (
        f"{found['value']:28} one host {one:.3f}, two hosts {two:.3f}, fresh {fresh:.3f}: "
        f"{100 * found['difference']:+.1f} % (± {100 * found['chance']:.1f}){verdict}"
    )


def _error(ratio: Ratio) -> float:
    return math.log(ratio.ci95.high / ratio.ci95.low) / 4


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns 1 where a value differs by more than 2 % and more than chance."""
    parser = argparse.ArgumentParser(description="Does it matter what a host has played before?")
    parser.add_argument("workloads", nargs="*", metavar="workload", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--seconds", type=float, default=4.0, help="that each player trains in a comparison")
    parser.add_argument("--values", nargs="+", metavar="knob=value", help="those alone; all when left out")
    options = parser.parse_args(arguments)
    if unknown := set(options.workloads) - set(WORKLOADS):
        parser.error(f"expected some of {', '.join(WORKLOADS)}, got {', '.join(sorted(unknown))}")
    found = saved("host_history").get("workloads", {})
    for name in options.workloads or CHOSEN:
        print(name, flush=True)
        found[name] = measured(WORKLOADS[name], options.seconds, options.values)
        print(f"written to {save('host_history', {'workloads': found})}")
    return int(any(not one["holds"] for workload in found.values() for one in workload["values"]))


if __name__ == "__main__":
    sys.exit(main())
