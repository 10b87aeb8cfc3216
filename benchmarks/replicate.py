"""Does the claimed speed-up come true? Trains baseline and tuned in a plain PyTorch loop and compares with the claim.

    python -m benchmarks.replicate results/<machine>/*.json --seconds 60 --rounds 3

Each side trains for so many seconds in all, split over the rounds. In a round, both sides run one after the other, in
random order, each in a fresh process. The beginning of each run, compiling included, is left out; then epochs are
really crossed, workers restarted and all. Nothing of autotune's own loop is used: `benchmarks.plain` is the loop.

Prints claimed against realised and writes benchmarks/output/replicate.json. The exit status is 1 when a realised
speed-up is more than 5 % off the claim and the intervals of the two do not overlap.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from pydantic import BaseModel

from autotune import TrainConfig
from autotune.measurement import Interval
from autotune.result import Result, Side, read_result
from autotune.workload import load_workload
from benchmarks.fresh import afresh
from benchmarks.output import save
from benchmarks.plain import Loop, set_process
from benchmarks.ratios import Ratio, paired_ratio

TOLERANCE = 0.05
SIDES = ("baseline", "tuned")
WARMUP_SHARE, WARMUP_STEPS, QUEUE_DRAINS = 0.15, 3, 2
WHOLE_EPOCHS_SHARE = 0.5
"""Whole epochs are what counts if they fill this share of the timed part; else all of it does."""


class Mark(NamedTuple):
    """How far training had come at a moment."""

    seconds: float
    samples: int
    epochs: int


class Run(BaseModel):
    """What one run realised.

    Attributes:
        samples_per_second: Over the timed part.
        timed_seconds: Length of that part.
        warmup_seconds: What was left out: from building the workload on.
        epochs_crossed: Ends of epochs within the timed part.
        last_loss: To see that it trains.
        foreign_cpu_fraction: Of all CPUs, what other processes took meanwhile: more than a little spoils a run.
    """

    samples_per_second: float
    timed_seconds: float
    warmup_seconds: float
    epochs_crossed: int
    last_loss: float
    foreign_cpu_fraction: float | None = None


class Replication(BaseModel):
    """One result file's claims against what came true.

    Attributes:
        claimed: The speed-up in the file; exactly 1 when it recommends the baseline.
        claimed_rates: Samples per second in the file, by side.
        realised_rates: Geometric means of the runs, by side.
    """

    file: str
    workload: str
    device: str
    changed_knobs: dict[str, tuple[Any, Any]]
    claimed: Ratio
    realised: Ratio
    claimed_rates: dict[str, float | None]
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


def train(target: str, side_json: str, device: str, seconds: float, seed: int) -> Run:
    """Trains in this process: a warm-up, then so many seconds that count (the warm-up's share of them left out)."""
    side = Side.model_validate_json(side_json)
    torch.manual_seed(seed)
    began = time.perf_counter()
    set_process(side.config, torch.device(device))
    loop = Loop(load_workload(target, side.parameters), side.config, device)
    warmup, marks = timed_marks(loop, began, seconds)
    first, last = timed_part(marks)
    return Run(
        samples_per_second=(last.samples - first.samples) / (last.seconds - first.seconds),
        timed_seconds=last.seconds - first.seconds,
        warmup_seconds=warmup,
        epochs_crossed=last.epochs - first.epochs,
        last_loss=float(loop.last_loss),
    )


def timed_marks(loop: Loop, began: float, seconds: float) -> tuple[float, list[Mark]]:
    """Trains; returns the seconds that were left out and marks: the beginning, each epoch's end, the end."""
    samples, epochs = 0, 0
    marks: list[Mark] = []
    for step, count in enumerate(loop.steps(), start=1):
        now = time.perf_counter()
        if not marks:
            if is_warm(loop.config, step, loop.batches, now - began, seconds):
                loop.synchronize()
                marks.append(Mark(time.perf_counter(), 0, loop.epochs))
                epochs = loop.epochs
            continue
        if loop.epochs > epochs:
            # This is the first step of a new epoch: its samples came after that epoch's worker start.
            epochs = loop.epochs
            loop.synchronize()
            marks.append(Mark(time.perf_counter(), samples + count, epochs))
        samples += count
        if now - marks[0].seconds >= (1 - WARMUP_SHARE) * seconds:
            break
    loop.synchronize()
    marks.append(Mark(time.perf_counter(), samples, epochs))
    return marks[0].seconds - began, marks


def is_warm(config: TrainConfig, steps: int, batches: int, elapsed: float, seconds: float) -> bool:
    """Whether the warm-up's time has passed, the first steps are done and the full queue of the start is used up."""
    queue = QUEUE_DRAINS * config.num_workers * (config.prefetch_factor or 0)
    return elapsed >= WARMUP_SHARE * seconds and steps >= WARMUP_STEPS and batches >= queue


def timed_part(marks: Sequence[Mark]) -> tuple[Mark, Mark]:
    """Where the timed part begins and ends: whole epochs if they fill enough of it, so that none counts in part."""
    inner = marks[1:-1]
    whole = marks[-1].seconds - marks[0].seconds
    if len(inner) >= 2 and inner[-1].seconds - inner[0].seconds >= WHOLE_EPOCHS_SHARE * whole:
        return inner[0], inner[-1]
    return marks[0], marks[-1]


def train_afresh(target: str, side: Side, device: str, seconds: float, seed: int) -> Run:
    """`train` in a fresh process, and what other processes took of the CPUs meanwhile."""
    began, busy, own = time.perf_counter(), busy_seconds(), own_seconds()
    run = afresh(train, target, side.model_dump_json(), device, seconds, seed)
    foreign = (busy_seconds() - busy) - (own_seconds() - own)
    capacity = (os.cpu_count() or 1) * (time.perf_counter() - began)
    return run.model_copy(update={"foreign_cpu_fraction": max(0.0, foreign / capacity)})


def busy_seconds() -> float:
    """CPU time that all processes of the machine have taken."""
    times = psutil.cpu_times()
    return float(times.user + times.system)


def own_seconds() -> float:
    """CPU time that this process and those that it has waited for have taken."""
    return sum(os.times()[:4])


def replicate(path: Path, seconds: float, rounds: int, seed: int = 0) -> Replication:
    """Trains both sides of a result file in interleaved rounds."""
    result = read_result(path)
    device = device_of(result)
    sides = dict(zip(SIDES, (result.baseline, result.best), strict=True))
    runs = realise(result.workload.target, sides, device, seconds, rounds, seed)
    return Replication(
        file=str(path),
        workload=result.workload.name,
        device=device,
        changed_knobs=result.changed_knobs,
        claimed=claim(result),
        realised=paired_ratio(*([run.samples_per_second for run in runs[name]] for name in SIDES)),
        claimed_rates={
            name: side.measurement.samples_per_second if side.measurement else None for name, side in sides.items()
        },
        realised_rates={
            name: statistics.geometric_mean(run.samples_per_second for run in runs[name]) for name in SIDES
        },
        runs=runs,
    )


def device_of(result: Result) -> str:
    """The device that was measured, in torch's word."""
    return {"rocm": "cuda"}.get(result.constraints.device, result.constraints.device)


def realise(
    target: str, sides: Mapping[str, Side], device: str, seconds: float, rounds: int, seed: int = 0
) -> dict[str, list[Run]]:
    """Trains each side for so many seconds in all, in interleaved rounds, each run in a fresh process.

    Args:
        target: The workload.
        sides: By name; their order within a round is random.
        device: ``cpu``, ``cuda`` or ``mps``.
        seconds: Of training, for each side.
        rounds: That they are split over.
        seed: Of the order, and of the samples that are drawn.
    """
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    rng = random.Random(seed)
    for number in range(rounds):
        for name in rng.sample(list(sides), k=len(sides)):
            # Each run draws its own samples: else the system's file cache flatters the one that comes second.
            run = train_afresh(target, sides[name], device, seconds / rounds, rng.randrange(2**31))
            runs[name].append(run)
            foreign = f"other processes took {run.foreign_cpu_fraction or 0:.0%} of the CPUs"
            print(f"  round {number + 1}, {name:8} {run.samples_per_second:9.1f} samples/s; {foreign}", file=sys.stderr)
    return runs


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
        f"  speed-up claimed {replication.claimed}, realised {replication.realised}: {replication.off:+.1%}, "
        f"{'within' if replication.within_tolerance else 'NOT within'} {TOLERANCE:.0%}; "
        f"the intervals {'overlap' if replication.intervals_overlap else 'do NOT overlap'}",
    ]
    for name in SIDES:
        claimed, realised = replication.claimed_rates[name], replication.realised_rates[name]
        against = f"claimed {claimed:.1f}, {realised / claimed - 1:+.1%}" if claimed else "nothing claimed"
        lines.append(f"  {name}: {realised:.1f} samples/s realised ({against})")
    return "\n".join(lines)


def save_all(replications: Sequence[Replication], seconds: float, rounds: int) -> Path:
    """Writes what is known so far."""
    rows = [
        one.model_dump(mode="json")
        | {
            "off": one.off,
            "within_tolerance": one.within_tolerance,
            "intervals_overlap": one.intervals_overlap,
            "came_true": one.came_true,
        }
        for one in replications
    ]
    return save("replicate", {"seconds_per_side": seconds, "rounds": rounds, "replications": rows})


def at_least_two(text: str) -> int:
    """A number of rounds: one has no spread."""
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError("at least 2 are needed for an interval")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Replicates all files, prints and saves after each; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="result files of autotune, measured on this machine")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, for each side")
    parser.add_argument("--rounds", type=at_least_two, default=3)
    asked = parser.parse_args(arguments)
    done: list[Replication] = []
    for path in asked.results:
        done.append(replicate(path, asked.seconds, asked.rounds))
        print(describe(done[-1]))
        written = save_all(done, asked.seconds, asked.rounds)
    print(f"written to {written}")
    return 0 if all(one.came_true for one in done) else 1


if __name__ == "__main__":
    sys.exit(main())
