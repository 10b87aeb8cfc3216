"""A/A test: the baseline against itself must come out as "no difference".

    python -m benchmarks.aa                    # about 20 minutes
    python -m benchmarks.aa --quick            # a minute, to see that it runs
    python -m benchmarks.aa --simulate-only    # again from the noise in benchmarks/output/aa.json

Real: ten confirmations of the digits baseline against itself, each as the product does it: `search.verify` over
bursts in processes of their own, the plan of a budget of two minutes, disturbed bursts run again. `verify` compares
different points, so the second side states an argument of `build()` whose default it repeats (`channels=64`): another
value to compare, the very same training. At least 9 of 10 intervals must contain 1.

Simulated: a thousand confirmations with the noise of the real ones. Each round is one of the recorded rounds, drawn
with replacement, its two sides swapped by the toss of a coin; each burst is its blocks, drawn with replacement. At
least 95 of 100 intervals must contain 1 when `verify` decides how many rounds there are, as in the product. Beside it
stand fixed numbers of rounds: they show whether the interval or the early end is to blame if that fails.

Writes benchmarks/output/aa.json, raw block rates included. The exit status is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from autotune.bursts.isolation import Isolation
from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Block, Burst, Measurement, Outcome, Point
from autotune.measuring.speedup import Speedup, speedup_in
from autotune.search.stopping import plan_for
from autotune.search.verify import Play, Round, confirm, speedup_of
from benchmarks import output

TARGET = "benchmarks.digits:build"
FIRST = Point(config=TrainConfig(batch_size=64))
SECOND = Point(config=FIRST.config, parameters={"channels": 64})
BUDGET_SECONDS = 120.0
DEADLINE_SECONDS = 120.0
REPEATS, SIMULATIONS = 10, 1000
QUICK_REPEATS, QUICK_SIMULATIONS = 2, 20
QUICK_PLAN = BurstPlan(warmup_seconds=0.5, measure_seconds=0.5)
FIXED_PAIRS = (2, 3, 5, 8)
DECIDED = "rounds as decided"
REAL_GOAL, SIMULATED_GOAL = 0.9, 0.95


class Recorded(NamedTuple):
    """The block rates of one round's two bursts, in samples per second."""

    first: list[float]
    second: list[float]


def confirm_itself(play: Play) -> tuple[Speedup, list[Round]]:
    """One confirmation of the baseline against itself: the speed-up, and what was measured.

    Raises:
        RuntimeError: When a burst does not end well.
    """
    rounds: dict[int, Round] = {}

    def keep(points: Sequence[Point], number: int) -> Sequence[Burst]:
        bursts = play(points, number)
        for burst in bursts:
            if burst.measurement is None or not burst.ok:
                raise RuntimeError(f"a burst of {TARGET} ended as {burst.outcome.value}: {burst.reason}")
            rounds.setdefault(number, {})[burst.point] = burst.measurement
        return bursts

    confirm(FIRST, [SECOND], keep, affords=lambda _: True)
    speedup = speedup_of(SECOND, FIRST, list(rounds.values()))
    assert speedup is not None  # confirm() runs two rounds or more
    return speedup, list(rounds.values())


def real(repeats: int, plan: BurstPlan) -> tuple[list[Speedup], list[list[Recorded]]]:
    """Real confirmations: their speed-ups, and the rounds of each."""
    speedups: list[Speedup] = []
    recorded: list[list[Recorded]] = []
    with Isolation(TARGET) as isolation:
        isolation.start(60)
        runner = ProcessRunner(isolation, "cpu")
        for repeat in range(repeats):
            speedup, rounds = confirm_itself(lambda points, _: runner.play(points, plan, DEADLINE_SECONDS))
            speedups.append(speedup)
            recorded.append([Recorded(one[FIRST].block_rates, one[SECOND].block_rates) for one in rounds])
            print(f"  real {repeat + 1}: {shown(speedup)}", file=sys.stderr)
    return speedups, recorded


class Resampling:
    """Draws rounds as they were recorded.

    Args:
        recorded: The rounds to draw from.
        seed: Of the draws.
    """

    def __init__(self, recorded: Sequence[Recorded], seed: int) -> None:
        self._recorded = recorded
        self._rng = random.Random(f"noise {seed}")  # no other stream of numbers, such as the order's, is like it

    def pair(self) -> tuple[Measurement, Measurement]:
        """The two sides of a round: which is which is a toss of a coin, so that neither can be faster."""
        sides = self._rng.sample(self._rng.choice(self._recorded), k=2)
        count = min(map(len, sides))
        drawn = self._rng.choices(range(count), k=count)  # what was trained in turn stays together
        first, second = (measurement_of([rates[index] for index in drawn]) for rates in sides)
        return first, second

    def play(self, points: Sequence[Point], _: int) -> list[Burst]:
        """A round, for `verify.confirm`."""
        sides = zip(points, self.pair(), strict=True)
        return [Burst(point=p, outcome=Outcome.OK, measurement=m, seconds=m.measure_seconds) for p, m in sides]


def measurement_of(rates: Sequence[float]) -> Measurement:
    """A measurement with these block rates."""
    blocks = tuple(Block(samples=1, seconds=1 / rate, data_wait_seconds=0) for rate in rates)
    return Measurement(blocks=blocks, steady=True, start_seconds=0, build_seconds=0, warmup_seconds=0)


def simulated(recorded: Sequence[Recorded], count: int) -> dict[str, list[Speedup]]:
    """Speed-ups of simulated confirmations: with as many rounds as `verify` asks for, and with fixed numbers."""
    decided = [confirm_itself(Resampling(recorded, seed).play)[0] for seed in range(count)]
    return {DECIDED: decided} | {
        f"{pairs} rounds": [speedup_in(draws(recorded, pairs, seed), FIRST, SECOND) for seed in range(count)]
        for pairs in FIXED_PAIRS
    }


def draws(recorded: Sequence[Recorded], pairs: int, seed: int) -> list[Round]:
    """A fixed number of simulated rounds."""
    resampling = Resampling(recorded, seed)
    return [dict(zip((FIRST, SECOND), resampling.pair(), strict=True)) for _ in range(pairs)]


def verdicts(speedups: Sequence[Speedup], goal: float) -> dict[str, Any]:
    """How many intervals contain 1, and how many lie above and below it."""
    faster = sum(one.ci95.low > 1 for one in speedups)
    slower = sum(one.ci95.high < 1 for one in speedups)
    same = len(speedups) - faster - slower
    return {
        "repeats": len(speedups),
        "no_difference": same,
        "faster": faster,
        "slower": slower,
        "goal": math.ceil(goal * len(speedups)),
        "met": same >= math.ceil(goal * len(speedups)),
        "median_interval_half_width": statistics.median((one.ci95.high - one.ci95.low) / 2 for one in speedups),
    }


def noise(recorded: Sequence[Recorded]) -> dict[str, float]:
    """How much the recorded rates scatter, as standard deviations of their logarithms."""
    logs = [math.log(statistics.median(one.second) / statistics.median(one.first)) for one in recorded]
    blocks = [statistics.stdev(map(math.log, rates)) for one in recorded for rates in one if len(rates) > 1]
    return {"of_a_pair": math.sqrt(statistics.fmean(log**2 for log in logs)), "of_blocks": statistics.median(blocks)}


def shown(speedup: Speedup) -> str:
    """A speed-up with its interval."""
    low, high = speedup.ci95
    return f"{speedup.ratio:.3f} × ({low:.3f} – {high:.3f}), {speedup.pairs} rounds"


def report(document: dict[str, Any]) -> str:
    """The verdicts, a line each."""
    rows = {"real": document["real"]} | {f"simulated, {name}": row for name, row in document["simulated"].items()}
    lines = [
        f"{name:30} no difference in {row['no_difference']} of {row['repeats']} (faster {row['faster']}, "
        f"slower {row['slower']}), goal {row['goal']}; interval ± {row['median_interval_half_width']:.1%}"
        for name, row in rows.items()
    ]
    scatter = document["noise"]
    return "\n".join([*lines, f"noise: {scatter['of_a_pair']:.1%} of a pair, {scatter['of_blocks']:.1%} of blocks"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, simulates, prints and saves; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help=f"real confirmations; {REPEATS}, or {QUICK_REPEATS} when quick")
    parser.add_argument("--simulations", type=int, help=f"{SIMULATIONS}, or {QUICK_SIMULATIONS} when quick")
    parser.add_argument("--quick", action="store_true", help="short bursts and few of them: a smoke test")
    parser.add_argument("--simulate-only", action="store_true", help="with the noise that was recorded before")
    asked = parser.parse_args(arguments)
    if asked.simulate_only:
        document = json.loads((output.FOLDER / "aa.json").read_text(encoding="utf-8"))
        figures = {name: document[name] for name in ("how_recorded", "plan", "real", "recorded_block_rates")}
    else:
        plan = QUICK_PLAN if asked.quick else plan_for(BUDGET_SECONDS)
        speedups, confirmations = real(asked.repeats or (QUICK_REPEATS if asked.quick else REPEATS), plan)
        figures = {
            "how_recorded": f"interleaved confirmations of the baseline of {TARGET} against itself, each burst in a "
            "process of its own; by confirmation, round and side",
            "plan": plan.model_dump(mode="json"),
            "real": verdicts(speedups, REAL_GOAL) | {"speedups": [one.model_dump(mode="json") for one in speedups]},
            "recorded_block_rates": [
                [[[round(rate, 2) for rate in side] for side in one] for one in rounds] for rounds in confirmations
            ],
        }
    recorded = [Recorded(*sides) for rounds in figures["recorded_block_rates"] for sides in rounds]
    count = asked.simulations or (QUICK_SIMULATIONS if asked.quick else SIMULATIONS)
    figures["simulated"] = {
        name: verdicts(speedups, SIMULATED_GOAL) for name, speedups in simulated(recorded, count).items()
    }
    figures["noise"] = noise(recorded)
    print(report(figures))
    print(f"written to {output.save('aa', figures)}")
    return 0 if figures["real"]["met"] and figures["simulated"][DECIDED]["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
