"""What it saves to fork a script where its training loop begins: seconds a burst, forked and started again.

    python -m benchmarks.script_starts                                  # benchmarks/wordy.py, about five minutes
    python -m benchmarks.script_starts --rounds 3 -- python /here/train.py --data /data    # any other, in full paths

In each round one burst is forked and one starts the script again, in random order; both train as long, each kind in an
empty working directory of its own. What starting the server takes, once for all forked bursts, is told beside.

Writes benchmarks/output/script_starts.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.errors import AutotuneError
from autotune.measuring.records import Burst, Point
from autotune.scripts import Script, ScriptIsolation
from benchmarks.output import save
from benchmarks.ratios import Ratio, paired_ratio
from benchmarks.replicate import at_least_two

EXAMPLE = Path(__file__).with_name("wordy.py")
PLAN = BurstPlan(measure_seconds=0.5)
LIMIT_SECONDS = 300.0
"""For a script to come to its training loop, and for a burst."""


def measure(command: Sequence[str], rounds: int, seed: int = 0) -> dict[str, Any]:
    """Both kinds of burst, in turn.

    Raises:
        AutotuneError: The script cannot be looked at, forked, or trained.
    """
    script = Script.of(command)
    seconds: dict[str, list[float]] = {"forked": [], "started": []}
    starts: dict[str, list[float]] = {"forked": [], "started": []}
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        folders = {name: stack.enter_context(tempfile.TemporaryDirectory()) for name in seconds}
        forking, starting = ScriptIsolation(script), ScriptIsolation(script, forks=False)
        isolations = {"forked": forking, "started": starting}
        for isolation in isolations.values():
            stack.enter_context(isolation)
        began = time.perf_counter()
        for name, isolation in isolations.items():
            os.chdir(folders[name])
            isolation.start(LIMIT_SECONDS)
        look_seconds = (time.perf_counter() - began) / len(isolations)
        runners = {name: ProcessRunner(isolation, "cpu") for name, isolation in isolations.items()}
        point = Point(config=runners["forked"].check(LIMIT_SECONDS).baseline)
        os.chdir(folders["forked"])
        first = required(runners["forked"].run(point, PLAN, LIMIT_SECONDS))
        if forking.fork_unsafe_reason is not None:
            raise AutotuneError(f"{script.name} cannot be forked: {forking.fork_unsafe_reason}")
        for number in range(rounds):
            for name in rng.sample(list(runners), k=len(runners)):
                os.chdir(folders[name])
                burst = required(runners[name].run(point, PLAN, LIMIT_SECONDS))
                seconds[name].append(burst.seconds)
                starts[name].append(burst.measurement.start_seconds or 0.0 if burst.measurement is not None else 0.0)
            print(
                f"  round {number + 1}: forked {seconds['forked'][-1]:.2f} s, started {seconds['started'][-1]:.2f} s",
                file=sys.stderr,
            )
    return {
        "script": script.name,
        "look_seconds": look_seconds,
        "server_seconds": first.seconds - statistics.median(seconds["forked"]),
        "plan": PLAN.model_dump(mode="json", exclude_defaults=True),
        "seconds_per_burst": seconds,
        "start_seconds": starts,
        "ratio": paired_ratio(seconds["forked"], seconds["started"]).model_dump(mode="json"),
    }


def required(burst: Burst) -> Burst:
    """A burst that ended well.

    Raises:
        AutotuneError: It did not.
    """
    if not burst.ok:
        raise AutotuneError(f"expected a burst that trains, got {burst.outcome.value}: {burst.reason}")
    return burst


def describe(figures: dict[str, Any]) -> str:
    """All figures, as lines."""
    lines = [f"{figures['script']}: starting a burst takes {figures_of(figures['start_seconds'])}"]
    lines.append(f"  a whole burst takes {figures_of(figures['seconds_per_burst'])}")
    lines.append(f"  so that a forked one costs less: {Ratio.model_validate(figures['ratio'])}")
    lines.append(f"  the server that is forked from takes {figures['server_seconds']:.1f} s, once")
    return "\n".join(lines)


def figures_of(seconds: dict[str, list[float]]) -> str:
    """Medians of both kinds."""
    forked, started = (statistics.median(seconds[name]) for name in ("forked", "started"))
    return f"{forked:.2f} s forked, {started:.2f} s where the script starts again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and saves; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least_two, default=10, help="of two bursts")
    parser.add_argument("command", nargs="*", help="that trains, after --; by default benchmarks/wordy.py")
    asked = parser.parse_args(arguments)
    try:
        figures = measure(asked.command or [sys.executable, str(EXAMPLE)], asked.rounds)
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    print(describe(figures))
    print(f"written to {save('script_starts', figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
