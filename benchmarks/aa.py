"""A/A test: the baseline against itself must come out as "no difference".

    python -m benchmarks.aa                    # all parts, about an hour
    python -m benchmarks.aa quiet neighbour    # some of them
    python -m benchmarks.aa --quick            # two minutes, to see that it runs
    python -m benchmarks.aa --simulate-only    # again from the pairs in benchmarks/output/aa.json

quiet, neighbour: comparisons of the digits baseline with itself, each as a confirmation does it: the rounds of
`search.rounds` in duets of fresh processes, with the plan of a budget of two minutes; on the machine as it is, and
beside somebody who burns all processors for random seconds (`benchmarks.neighbour`). The two sides must be different
points: the second states an argument of `build()` whose default it repeats (``channels=64``).

- *Real* are a few whole comparisons.
- *Resampled* are a thousand: their rounds are those of the real ones, drawn without replacement, the two sides of each
  swapped by the toss of a coin, so that neither can be faster; `rounds` decides how many. Fixed numbers of rounds show
  whether the interval or the early end is to blame where too many are called different.

At most 5 of 100 may be called different, and the median ratio must be within 2 % of 1.

blocks: pairs of processes as above, with blocks of 0.05 to 1 s: what the shorter ones cost in certainty.

turns: two processes in the independent loop (`benchmarks.alternate`), in turns of 0.05 to 1 s and of 5 s without
interruption, in random order: how much slower short turns are, because they find caches cold.

Writes benchmarks/output/aa.json, the blocks of all pairs included. The exit status is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from autotune.measuring.speedup import Round, Rounds, Speedup
from autotune.search.rounds import Play, confirm
from autotune.search.stopping import confirming_plan
from benchmarks import output
from benchmarks.aa_turns import BLOCK_SECONDS, turn_lengths
from benchmarks.neighbour import neighbour
from benchmarks.ratios import Ratio, paired_ratio, speedup_in

TARGET = "benchmarks.digits:build"
FIRST = Point(config=TrainConfig(batch_size=64))
SECOND = Point(config=FIRST.config, parameters={"channels": 64})
BUDGET_SECONDS = 120.0
DEADLINE_SECONDS = 300.0
COMPARISONS, SIMULATIONS, PAIRS, CYCLES = 10, 1000, 8, 10
QUICK_COMPARISONS, QUICK_SIMULATIONS, QUICK_PAIRS, QUICK_CYCLES = 1, 20, 2, 2
QUICK_PLAN = BurstPlan(measure_seconds=0.5)
BLOCKS_OF_A_TURN, TURNS = 2, 10
"""A duet's turn is twice a plan's block, but a side has ten of them at least: what a plan must say for a given turn."""
FIXED_PAIRS = (3, 5, 8)
DECIDED = "rounds as decided"
CALLED_DIFFERENT, MEDIAN_OFF = 0.05, 0.02
QUIET, NEIGHBOUR = "quiet", "neighbour"
PARTS = (QUIET, NEIGHBOUR, "blocks", "turns")
KEPT = {"how_real", "plan", "real", "recorded", "how_simulated", "simulated", "noise", NEIGHBOUR, "blocks", "turns"}
"""Of an earlier file: what this run does not measure stays."""


class Blocks(NamedTuple):
    """One side of a pair: the samples and the seconds of its blocks, epoch boundaries included."""

    samples: list[int]
    seconds: list[float]


Pair = tuple[Blocks, Blocks]


def blocks_of(measured: Measurement) -> Blocks:
    """What is recorded of a measurement."""
    return Blocks([block.samples for block in measured.blocks], [round(one, 5) for one in measured.block_seconds])


def measurement_of(blocks: Blocks) -> Measurement:
    """The measurement that was recorded."""
    found = [Block(samples=n, seconds=s, data_wait_seconds=0) for n, s in zip(*blocks, strict=True)]
    return Measurement(blocks=tuple(found), start_seconds=0, build_seconds=0, warmup_seconds=0)


def well(bursts: Sequence[Burst]) -> list[Measurement]:
    """What bursts measured.

    Raises:
        RuntimeError: When one did not end well.
    """
    found = []
    for burst in bursts:
        if burst.measurement is None or not burst.ok:
            raise RuntimeError(f"a burst of {TARGET} ended as {burst.outcome.value}: {burst.reason}")
        found.append(burst.measurement)
    return found


def compare_itself(play: Play, most_rounds: float = math.inf) -> tuple[Speedup, list[Round]]:
    """One comparison of the baseline with itself: the speed-up, and what was measured."""
    rounds: list[Round] = []

    def keep(points: Sequence[Point], number: int) -> Sequence[Burst]:
        bursts = play(points, number)
        rounds.append(dict(zip(points, well(bursts), strict=True)))
        return bursts

    confirm(FIRST, [SECOND], keep, Rounds(()), affords=lambda _: len(rounds) < most_rounds)
    return speedup_in(rounds, FIRST, SECOND), rounds


def real(runner: ProcessRunner, comparisons: int, plan: BurstPlan) -> tuple[list[Speedup], list[list[Pair]]]:
    """Real comparisons: their speed-ups, and the pairs of each."""
    speedups: list[Speedup] = []
    pairs: list[list[Pair]] = []
    for number in range(comparisons):
        speedup, rounds = compare_itself(lambda points, _: runner.play(points, plan, DEADLINE_SECONDS))
        speedups.append(speedup)
        pairs.append([(blocks_of(one[FIRST]), blocks_of(one[SECOND])) for one in rounds])
        print(f"  real {number + 1}: {shown(speedup)}", file=sys.stderr)
    return speedups, pairs


class Resampling:
    """Plays rounds as they were recorded, each once at most.

    Args:
        recorded: The pairs to draw from.
        seed: Of the draws.
    """

    def __init__(self, recorded: Sequence[Pair], seed: int) -> None:
        self._rng = random.Random(f"rounds {seed}")  # no other stream of numbers, such as the order's, is like it
        self._left = self._rng.sample(list(recorded), k=len(recorded))

    def play(self, points: Sequence[Point], _: int) -> list[Burst]:
        """A round, for `rounds.confirm`: which side is which is a toss of a coin."""
        drawn = self._rng.sample(self._left.pop(), k=2)
        sides = zip(points, map(measurement_of, drawn), strict=True)
        return [Burst(point=p, outcome=Outcome.OK, measurement=m, seconds=m.measure_seconds) for p, m in sides]


def resampled(recorded: Sequence[Pair], count: int) -> dict[str, list[Speedup]]:
    """Speed-ups of resampled comparisons: with as many rounds as `rounds` asks for, and with fixed numbers."""

    def fixed(pairs: int, seed: int) -> Speedup:
        resampling = Resampling(recorded, seed)
        both = (FIRST, SECOND)
        rounds = [dict(zip(both, well(resampling.play(both, number)), strict=True)) for number in range(pairs)]
        return speedup_in(rounds, FIRST, SECOND)

    decided = [compare_itself(Resampling(recorded, seed).play, len(recorded))[0] for seed in range(count)]
    return {DECIDED: decided} | {
        f"{pairs} rounds": [fixed(pairs, seed) for seed in range(count)]
        for pairs in FIXED_PAIRS
        if pairs <= len(recorded)
    }


def verdicts(speedups: Sequence[Speedup]) -> dict[str, Any]:
    """How many are called different, and the median ratio."""
    faster = sum(one.ci95.low > 1 for one in speedups)
    slower = sum(one.ci95.high < 1 for one in speedups)
    different, median = faster + slower, statistics.median(one.ratio for one in speedups)
    most = max(1, math.floor(CALLED_DIFFERENT * len(speedups)))  # of ten, one: 5 of 100 are no fewer than none
    return {
        "repeats": len(speedups),
        "no_difference": len(speedups) - different,
        "faster": faster,
        "slower": slower,
        "goal": len(speedups) - most,
        "median_ratio": median,
        "median_interval_half_width": statistics.median((one.ci95.high - one.ci95.low) / 2 for one in speedups),
        "met": different <= most and abs(median - 1) <= MEDIAN_OFF,
    }


def noise(recorded: Sequence[Pair]) -> dict[str, Any]:
    """How much the pairs scatter (the standard deviation of their ratios' logarithms), and which side they favour."""
    rates = [[sum(side.samples) / math.fsum(side.seconds) for side in pair] for pair in recorded]
    logs = [math.log(second / first) for first, second in rates]
    second_over_first = paired_ratio([first for first, _ in rates], [second for _, second in rates])
    return {
        "of_a_pair": math.sqrt(statistics.fmean(log**2 for log in logs)),
        "second_over_first": second_over_first.model_dump(mode="json"),
    }


def condition(runner: ProcessRunner, comparisons: int, plan: BurstPlan) -> dict[str, Any]:
    """Real comparisons, on the machine as it is."""
    speedups, pairs = real(runner, comparisons, plan)
    return {
        "how_real": f"whole confirmations of the baseline of {TARGET} against itself, in duets of fresh processes",
        "plan": plan.model_dump(mode="json"),
        "real": verdicts(speedups) | {"speedups": [one.model_dump(mode="json") for one in speedups]},
        "recorded": [[[side._asdict() for side in pair] for pair in rounds] for rounds in pairs],
    }


def simulations(found: dict[str, Any], count: int) -> dict[str, Any]:
    """What is made of the pairs of real comparisons."""
    pairs = [recorded_pair(pair) for rounds in found["recorded"] for pair in rounds]
    return {
        "how_simulated": f"comparisons whose rounds are drawn from the {len(pairs)} pairs of the real ones, without "
        "replacement, their sides swapped by the toss of a coin",
        "simulated": {name: verdicts(speedups) for name, speedups in resampled(pairs, count).items()},
        "noise": noise(pairs),
    }


def recorded_pair(pair: Sequence[dict[str, Any]]) -> Pair:
    """A pair out of a file."""
    first, second = (Blocks(**side) for side in pair)
    return first, second


def block_lengths(runner: ProcessRunner, pairs: int, seconds: float) -> list[dict[str, Any]]:
    """Pairs of processes for each length of block."""
    rows = []
    for length in BLOCK_SECONDS:
        plan = BurstPlan(measure_seconds=max(seconds, TURNS * length), turn_seconds=length)
        played = [well(runner.play([FIRST, SECOND], plan, DEADLINE_SECONDS)) for _ in range(pairs)]
        found: list[Pair] = [(blocks_of(first), blocks_of(second)) for first, second in played]
        speedup = speedup_in([{FIRST: first, SECOND: second} for first, second in played], FIRST, SECOND)
        rows.append(
            {
                "block_seconds": length,
                "measured_block_seconds": statistics.median(s for pair in found for side in pair for s in side.seconds),
                "all_pairs": speedup.model_dump(mode="json"),
                "noise": noise(found),
                "recorded": [[side._asdict() for side in pair] for pair in found],
            }
        )
        print(f"  blocks of {length} s: {shown(speedup)}", file=sys.stderr)
    return rows


def shown(speedup: Speedup) -> str:
    """A speed-up with its interval."""
    low, high = speedup.ci95
    return f"{speedup.ratio:.3f} × ({low:.3f} – {high:.3f}), {speedup.pairs} rounds"


def report(document: dict[str, Any]) -> str:
    """What is known, a line each."""
    lines = []
    for name, found in conditions(document).items():
        rows = {"real": found["real"]} | {f"resampled, {how}": row for how, row in found["simulated"].items()}
        lines += [
            f"{name:9} {how:28} called different: {row['faster'] + row['slower']} of {row['repeats']} (faster "
            f"{row['faster']}, slower {row['slower']}); median {row['median_ratio']:.3f} ×, ± "
            f"{row['median_interval_half_width']:.1%}{'' if row['met'] else '; goal NOT met'}"
            for how, row in rows.items()
        ]
        lines.append(f"{name:9} the ratios of single pairs scatter by {found['noise']['of_a_pair']:.1%}")
    for row in document.get("blocks", []):
        lines.append(
            f"blocks of {row['block_seconds']:4} s: {shown(Speedup.model_validate(row['all_pairs']))}; single pairs "
            f"scatter by {row['noise']['of_a_pair']:.1%}"
        )
    for row in document.get("turns", []):
        over = Ratio.model_validate(row["over_uninterrupted"])
        lines.append(f"turns of {row['turn_seconds']:5} s: {over} as fast as without interruption")
    return "\n".join(lines)


def conditions(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was recorded on the machine as it is, and beside a neighbour."""
    found = {QUIET: document, NEIGHBOUR: document.get(NEIGHBOUR, {})}
    return {name: one for name, one in found.items() if "recorded" in one}


def measure(part: str, quick: bool, comparisons: int) -> dict[str, Any]:
    """One part, as it is written."""
    if part == "turns":
        return {"turns": turn_lengths(TARGET, FIRST.config, QUICK_CYCLES if quick else CYCLES)}
    with Isolation(TARGET) as isolation:
        isolation.start(60)
        runner = ProcessRunner(isolation, "cpu")
        if part == "blocks":
            return {"blocks": block_lengths(runner, *((QUICK_PAIRS, 0.5) if quick else (PAIRS, 4.0)))}
        plan = QUICK_PLAN if quick else confirming_plan(BUDGET_SECONDS)
        with neighbour(seed=0) if part == NEIGHBOUR else contextlib.nullcontext():
            found = condition(runner, comparisons, plan)
    return found if part == QUIET else {part: found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, resamples, prints and saves after each part; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="part", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--comparisons", type=int, help=f"real ones; {COMPARISONS}, or {QUICK_COMPARISONS} when quick")
    parser.add_argument("--simulations", type=int, help=f"{SIMULATIONS}, or {QUICK_SIMULATIONS} when quick")
    parser.add_argument("--quick", action="store_true", help="short and few: a smoke test")
    parser.add_argument("--simulate-only", action="store_true", help="with the pairs that were recorded before")
    asked = parser.parse_args(arguments)
    count = asked.simulations or (QUICK_SIMULATIONS if asked.quick else SIMULATIONS)
    comparisons = asked.comparisons or (QUICK_COMPARISONS if asked.quick else COMPARISONS)
    figures = {name: value for name, value in output.saved("aa").items() if name in KEPT}
    parts = () if asked.simulate_only else (asked.parts or PARTS)
    for part in parts or (None,):
        if part is not None:
            print(f"{part}:", file=sys.stderr)
            figures |= measure(part, asked.quick, comparisons)
        for found in conditions(figures).values():
            found.update(simulations(found, count))
        written = output.save("aa", figures)
    print(report(figures))
    print(f"written to {written}")
    known = conditions(figures).values()
    return int(not all(found["real"]["met"] and found["simulated"][DECIDED]["met"] for found in known))


if __name__ == "__main__":
    sys.exit(main())
