"""How much do processes of one workload differ? The spread of the rounds of proofs, over many workloads.

    python -m benchmarks.process_spread results/*/*.json

A proof of one or two rounds cannot show how much processes differ; the rounds of other proofs can. Each file's rounds
give the standard deviation of the logarithm of the ratio between two fresh processes. Over all files, this spread is
taken to be log-normal: the grid holds the most likely median and factor (one standard deviation of its logarithm).
`autotune.measuring.statistics.deviation_bound` uses them, with a wider factor. Writes
benchmarks/output/process_spread.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from autotune.measuring.statistics import SPREAD_FACTOR, SPREAD_PLACES, USUAL_SPREAD
from autotune.results.result import CONFIRM, Result, read_result
from benchmarks.output import save

MEDIANS = [0.01 * 1.1**step for step in range(25)]
FACTORS = [1.1**step for step in range(2, 20)]
LEAST = 1e-4


class Race(NamedTuple):
    """A finalist's rounds against the baseline.

    Attributes:
        workload: The file that they are in.
        deviation: Standard deviation of the logarithms of the rounds' ratios.
        pairs: The number of rounds.
    """

    workload: str
    deviation: float
    pairs: int


def races_in(result: Result, name: str) -> Iterator[Race]:
    """The races of a result whose rounds are at least two."""
    rounds: dict[str, dict[str, float]] = {}
    for trial in result.trials:
        if trial.stage == CONFIRM and trial.samples_per_second:
            rounds.setdefault(trial.reason, {})[str(sorted(trial.changes.items()))] = trial.samples_per_second
    baseline = str([])
    for point in dict.fromkeys(point for played in rounds.values() for point in played if point != baseline):
        both = [played for played in rounds.values() if {baseline, point} <= played.keys()]
        if len(both) > 1:
            logs = [math.log(played[point] / played[baseline]) for played in both]
            yield Race(name, max(LEAST, statistics.stdev(logs)), len(logs))


def log_likelihood(races: Sequence[Race], median: float, factor: float) -> float:
    """The logarithm of the chance of these deviations, where true spreads are log-normal."""
    weights = [math.exp(-(place**2) / 2) for place in SPREAD_PLACES]

    def chance(race: Race) -> float:
        degrees, total = race.pairs - 1, 0.0
        for place, weight in zip(SPREAD_PLACES, weights, strict=True):
            ratio = degrees * (race.deviation / (median * factor**place)) ** 2
            total += weight * math.exp(degrees / 2 * math.log(ratio) - ratio / 2 - math.lgamma(degrees / 2))
        return total / math.fsum(weights)

    return math.fsum(math.log(chance(race)) for race in races)


def fitted(races: Sequence[Race]) -> tuple[float, float]:
    """The most likely median and factor."""
    return max(itertools.product(MEDIANS, FACTORS), key=lambda pair: log_likelihood(races, *pair))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fits, prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="results with rounds of a proof")
    options = parser.parse_args(arguments)
    races = [race for path in options.files for race in races_in(read_result(path), path.stem)]
    median, factor = fitted(races)
    print(f"{len(races)} races: median {median:.3f}, factor {factor:.2f}; in use {USUAL_SPREAD}, {SPREAD_FACTOR:.2f}")
    rows = [race._asdict() for race in sorted(races, key=lambda race: race.deviation)]
    save("process_spread", {"median": median, "factor": factor, "races": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
