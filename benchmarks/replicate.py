"""Does the claimed speed-up come true? Trains baseline and tuned in a plain PyTorch loop and compares with the claim.

    python -m benchmarks.replicate results/<machine>/*.json                # four minutes a file
    python -m benchmarks.replicate results/<machine>/*.json --seconds 120 --rounds 6
    python -m benchmarks.replicate results/<machine>/*.json --framework all

Each side trains for so many seconds in all, split over the rounds. In a round, each has a fresh process, and both are
alive: they take turns of half a second in random order, and who is not training is stopped (`benchmarks.alternate`).
The beginning of each process, compiling included, is left out; then epochs are really crossed, workers restarted and
all. Nothing of autotune's own loop is used: `benchmarks.plain` is the loop.

With --framework, each round trains both sides in that loop and through each of the frameworks as well: with the
baseline's config and the tuned one, brought into effect by autotune's integration (`benchmarks.frameworks`). Lightning
trains the files that were measured from a LightningModule, the others all other files: for how long gradients live
decides what a setting of the allocator gains.

Prints claimed against realised and writes benchmarks/output/replicate.json, or replicate_frameworks.json. The exit
status is 1 when a realised speed-up is more than 5 % off the claim and the intervals of the two do not overlap.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from autotune.errors import AutotuneError
from autotune.measuring.statistics import Interval
from autotune.results.result import Result, read_result
from autotune.workload.target import load_workload
from benchmarks import frameworks
from benchmarks.alternate import Run, realise_in
from benchmarks.output import save
from benchmarks.ratios import Ratio, paired_ratio
from benchmarks.trainee import PLAIN

TOLERANCE, MEAN_TOLERANCE = 0.05, 0.03
SIDES = ("baseline", "tuned")


class Verdict(BaseModel):
    """A claim against what came true.

    Attributes:
        claimed: The speed-up in the file; exactly 1 when it recommends the baseline.
        realised_rates: Geometric means of the runs, by side.
    """

    claimed: Ratio
    realised: Ratio
    realised_rates: dict[str, float]
    runs: dict[str, list[Run]]

    @property
    def off(self) -> float:
        """How far the realised speed-up is from the claim, relative to the claim."""
        return self.realised.ratio / self.claimed.ratio - 1

    @property
    def within_tolerance(self) -> bool:
        """Whether that is at most 5 %."""
        return abs(self.off) <= TOLERANCE

    @property
    def intervals_overlap(self) -> bool:
        """Whether claimed and realised could be the same."""
        return self.claimed.overlaps(self.realised)

    @property
    def came_true(self) -> bool:
        """Whether nothing speaks against the claim."""
        return self.within_tolerance or self.intervals_overlap


class Through(Verdict):
    """The claim against what a framework made of it.

    Attributes:
        of_plain: The speed-up through the framework over that of the plain loop in the same rounds.
    """

    of_plain: Ratio


class Replication(Verdict):
    """One result file's claims against what came true in the plain loop, and through frameworks.

    Attributes:
        claimed_rates: Samples per second in the file, by side.
        frameworks: By name.
    """

    file: str
    workload: str
    device: str
    changed_knobs: dict[str, tuple[Any, Any]]
    claimed_rates: dict[str, float | None]
    frameworks: dict[str, Through] = {}


def replicate(path: Path, seconds: float, rounds: int, names: Sequence[str] = (), seed: int = 0) -> Replication:
    """Trains both sides of a result file in interleaved rounds, in the plain loop and through frameworks."""
    result = read_result(path)
    device = device_of(result)
    if names:
        able = frameworks.that_train(load_workload(result.workload.target))
        if skipped := [name for name in names if name not in able]:
            print(f"{path}: skips {', '.join(skipped)}, where gradients live for another time", file=sys.stderr)
        names = [name for name in names if name in able]
    sides = dict(zip(SIDES, (result.baseline, result.best), strict=True))
    by_loop = realise_in((PLAIN, *names), result.workload.target, sides, device, seconds, rounds, seed)
    claimed = claim(result)
    realised = {loop: realised_in(runs) for loop, runs in by_loop.items()}
    plain = gains(by_loop[PLAIN])
    return Replication(
        file=str(path),
        workload=result.workload.name,
        device=device,
        changed_knobs=result.changed_knobs,
        claimed=claimed,
        claimed_rates={
            name: side.measurement.samples_per_second if side.measurement else None for name, side in sides.items()
        },
        **realised[PLAIN],
        frameworks={
            name: Through(claimed=claimed, of_plain=paired_ratio(plain, gains(by_loop[name])), **realised[name])
            for name in names
        },
    )


def realised_in(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """The fields of a verdict that one loop's runs decide."""
    rates = {name: [run.samples_per_second for run in runs[name]] for name in SIDES}
    return {
        "realised": paired_ratio(*rates.values()),
        "realised_rates": {name: statistics.geometric_mean(values) for name, values in rates.items()},
        "runs": runs,
    }


def gains(runs: Mapping[str, Sequence[Run]]) -> list[float]:
    """The speed-up of each round."""
    both = zip(*(runs[name] for name in SIDES), strict=True)
    return [tuned.samples_per_second / baseline.samples_per_second for baseline, tuned in both]


def device_of(result: Result) -> str:
    """The device that was measured, in torch's word."""
    return {"rocm": "cuda"}.get(result.constraints.device, result.constraints.device)


def claim(result: Result) -> Ratio:
    """The speed-up that a file claims; a file that recommends the baseline claims exactly 1."""
    if result.speedup is None:
        return Ratio(ratio=1.0, ci95=Interval(1.0, 1.0))
    return Ratio(ratio=result.speedup.ratio, ci95=result.speedup.ci95)


def describe(replication: Replication) -> str:
    """Claimed against realised, as lines."""
    knobs = ", ".join(f"{knob} {before} → {after}" for knob, (before, after) in replication.changed_knobs.items())
    lines = [
        f"{replication.workload} on {replication.device} ({replication.file}): {knobs or 'the baseline is the answer'}",
        f"  speed-up claimed {replication.claimed}, realised {replication.realised}: {outcome(replication)}",
    ]
    for name in SIDES:
        claimed, realised = replication.claimed_rates[name], replication.realised_rates[name]
        against = f"claimed {claimed:.1f}, {realised / claimed - 1:+.1%}" if claimed else "nothing claimed"
        lines.append(f"  {name}: {realised:.1f} samples/s realised ({against})")
    if replication.frameworks:
        lines.append(f"  {'through':14}{'realised':26}{'of the plain loop’s':26}samples/s")
    for framework, through in replication.frameworks.items():
        rates = " → ".join(f"{through.realised_rates[name]:.1f}" for name in SIDES)
        lines.append(f"  {framework:14}{through.realised!s:24}  {through.of_plain!s:24}  {rates}: {outcome(through)}")
        said = {sentence for runs in through.runs.values() for run in runs for sentence in run.not_in_effect}
        lines += [f"  {'':14}{sentence}" for sentence in sorted(said)]
    return "\n".join(lines)


def outcome(verdict: Verdict) -> str:
    """How far from the claim, and whether that speaks against it."""
    return (
        f"{verdict.off:+.1%}, {'within' if verdict.within_tolerance else 'NOT within'} {TOLERANCE:.0%}; "
        f"the intervals {'overlap' if verdict.intervals_overlap else 'do NOT overlap'}"
    )


def row(verdict: Verdict) -> dict[str, Any]:
    """A verdict as it is written."""
    judged = ("off", "within_tolerance", "intervals_overlap", "came_true")
    return verdict.model_dump(mode="json", exclude={"frameworks"}) | {name: getattr(verdict, name) for name in judged}


def together(replications: Sequence[Replication]) -> dict[str, float]:
    """All files in one: how far realised speed-ups are from the claims in the mean, and how many lie on either side."""
    mean = math.exp(statistics.fmean(math.log1p(one.off) for one in replications)) - 1
    return {
        "mean_off": mean,
        "goal": MEAN_TOLERANCE,
        "above_the_claim": sum(one.off > 0 for one in replications),
        "below_the_claim": sum(one.off < 0 for one in replications),
    }


def save_all(replications: Sequence[Replication], seconds: float, rounds: int) -> Path:
    """Writes what is known so far."""
    through = any(one.frameworks for one in replications)
    rows = [
        row(one) | ({"frameworks": {name: row(found) for name, found in one.frameworks.items()}} if through else {})
        for one in replications
    ]
    figures = {
        "seconds_per_side": seconds, "rounds": rounds, "together": together(replications), "replications": rows
    }  # fmt: skip
    return save("replicate_frameworks" if through else "replicate", figures)


def at_least_two(text: str) -> int:
    """A number of rounds: one has no spread."""
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError("at least 2 are needed for an interval")
    return number


def frameworks_in(text: str) -> tuple[str, ...]:
    """The frameworks of ``lightning,fabric`` or ``all``."""
    names = tuple(frameworks.NEEDED) if text == "all" else tuple(text.split(","))
    for name in names:
        if name not in frameworks.NEEDED:
            known = ", ".join(frameworks.NEEDED)
            raise argparse.ArgumentTypeError(f"{name!r} is no framework that is known here; use {known} or all")
        if absent := frameworks.absent_packages(name):
            raise argparse.ArgumentTypeError(f"{name} needs what is not installed: pip install {' '.join(absent)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Replicates all files, prints and saves after each; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="result files of autotune, measured on this machine")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, for each side in each loop")
    parser.add_argument("--rounds", type=at_least_two, default=4, help="that the seconds are split over")
    parser.add_argument(
        "--framework", type=frameworks_in, action="extend", default=[], metavar="NAME,…",
        help=f"train through these too: {', '.join(frameworks.NEEDED)} or all",
    )  # fmt: skip
    asked = parser.parse_args(arguments)
    names = tuple(dict.fromkeys(asked.framework))
    done: list[Replication] = []
    for path in asked.results:
        try:
            done.append(replicate(path, asked.seconds, asked.rounds, names))
        except AutotuneError as error:
            print(error, file=sys.stderr)
            return error.exit_status
        print(describe(done[-1]))
        written = save_all(done, asked.seconds, asked.rounds)
    mean, _, above, below = together(done).values()
    print(f"in the mean {mean:+.1%} off the claims (goal {MEAN_TOLERANCE:.0%}), {above} above and {below} below")
    print(f"written to {written}")
    return 0 if all(one.came_true for each in done for one in (each, *each.frameworks.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
