"""What autotune itself costs: starting, probing, and a burst beyond its own build, warm-up and timing.

    python -m benchmarks.overhead

Prints the figures with their spread and writes them to benchmarks/output/overhead.json.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Point
from benchmarks.output import save

TARGET = "benchmarks.digits:build"
REPEATS = 10
PLAN = BurstPlan(measure_seconds=1.0)
CONFIGS = {
    "no workers": TrainConfig(batch_size=64),
    "2 workers": TrainConfig(batch_size=64, num_workers=2, persistent_workers=True),
}


def timed(action: Callable[[], object]) -> float:
    """Seconds that an action takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def command(*arguments: str) -> Callable[[], object]:
    """Runs ``autotune`` with these arguments."""
    return lambda: subprocess.run([sys.executable, "-m", "autotune", *arguments], capture_output=True, check=True)


def own_seconds(burst: Burst) -> float:
    """Seconds of a burst that were neither its build, its warm-up nor its timing."""
    if burst.measurement is None:
        raise RuntimeError(f"a burst of {TARGET} ended as {burst.outcome.value}: {burst.reason}")
    measurement = burst.measurement
    return burst.seconds - measurement.build_seconds - measurement.warmup_seconds - measurement.measure_seconds


def burst_overheads() -> dict[str, list[float]]:
    """The overheads of a row of bursts for each config, the very first burst left out."""
    with Isolation(TARGET) as isolation:
        isolation.start(60)
        runner = ProcessRunner(isolation, "cpu")
        runner.run(Point(config=TrainConfig()), PLAN, 60)
        return {
            name: [own_seconds(runner.run(Point(config=config), PLAN, 60)) for _ in range(REPEATS)]
            for name, config in CONFIGS.items()
        }


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(seconds), "lowest": min(seconds), "highest": max(seconds)}


def main() -> None:
    """Measures, prints and saves."""
    command("--help")()  # writes the byte code
    figures = {
        "autotune --help": [timed(command("--help")) for _ in range(REPEATS)],
        "autotune probe": [timed(command("probe")) for _ in range(3)],
        **{f"burst, {name}": seconds for name, seconds in burst_overheads().items()},
    }
    goals = {"autotune --help": 0.3, "autotune probe": 6.0, "burst, no workers": 0.6, "burst, 2 workers": 0.6}
    rows = {name: {**summary(seconds), "goal": goals[name]} for name, seconds in figures.items()}
    for name, row in rows.items():
        print(f"{name:20} {row['median']:.3f} s  ({row['lowest']:.3f} – {row['highest']:.3f}), goal {row['goal']} s")
    print(f"written to {save('overhead', {'seconds': rows})}")


if __name__ == "__main__":
    main()
