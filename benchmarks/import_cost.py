"""What importing a config costs a training: the start, and the documented loop beside one written by hand.

    python -m benchmarks.import_cost                      # the digits' result, about eight minutes
    python -m benchmarks.import_cost FILE --rounds 3 --seconds 10 --starts 5

The start: a script that makes a model and an optimizer, and the same script with ``import autotune``, `load` and
`prepare` (the settings' own time included), each whole, from the start of Python to its end, in turn.

The loop: in each round a fresh process trains the workload twice, in turns of a second or so: in the documented loop,
with ``tuned.dataloader``, ``prepare``, ``accumulate``, ``autocast`` and ``scaler``, and in `benchmarks.plain`, which
has the same settings without autotune. Both share the process: what differs from process to process does not count.

The cost is what is lost of a training of a stated length (--training), the goal less than 1 %.
Writes benchmarks/output/import_cost.json. The exit status is 1 when the cost is above the goal beyond doubt.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel
from torch import nn
from torch.utils.data import IterableDataset

from autotune import Tuned, Workload
from autotune.errors import AutotuneError, UsageError
from autotune.hardware import probe_host
from autotune.measuring.statistics import student_t
from autotune.results.result import Side, read_result
from autotune.units import parse_duration
from autotune.workload.target import load_workload
from benchmarks.fresh import afresh_watched
from benchmarks.output import save
from benchmarks.plain import Counted, Loop, set_process
from benchmarks.ratios import Ratio, paired_ratio
from benchmarks.replicate import at_least_two, device_of

ROOT = Path(__file__).parents[1]
DEFAULT_RESULTS = "benchmarks-digits-build*.json"
GOAL = 0.01
WARMUP_SHARE, TURN_SHARE, SETTLE_SHARE = 0.15, 0.05, 0.0125
"""Of the seconds that a loop is timed in a round: its warm-up, one turn, and what is left out at a turn's beginning."""
WARMUP_STEPS = 3

BARE = """
import sys
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 10)).to(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters())
"""
TUNED = f"""{BARE}
import autotune
tuned = autotune.load(sys.argv[2])
model, optimizer = tuned.prepare(model, optimizer)
"""


class Ends(NamedTuple):
    """Of an interval: what is lost may be less than nothing."""

    low: float
    high: float


class Extra(BaseModel):
    """What a start with autotune takes longer.

    Attributes:
        seconds: Mean of the pairs' differences.
        ci95: Its interval.
        bare: Seconds of the scripts without it.
        with_autotune: Seconds of those with it.
    """

    seconds: float
    ci95: Ends
    bare: list[float]
    with_autotune: list[float]


class Rates(NamedTuple):
    """Samples per second of one round.

    Attributes:
        by_hand: In the loop without autotune.
        with_autotune: In the documented loop.
    """

    by_hand: float
    with_autotune: float


class Cost(BaseModel):
    """What is lost of a training, as a share of its time.

    Attributes:
        share: Of the start and of the loop together.
        ci95: Its interval.
    """

    share: float
    ci95: Ends

    @property
    def met(self) -> bool:
        """Whether it is less than the goal."""
        return self.share < GOAL

    @property
    def beyond_doubt(self) -> bool:
        """Whether the whole interval says the same."""
        return self.ci95.high < GOAL or self.ci95.low > GOAL


class ReadmeLoop:
    """Trains a workload in the loop of docs/guides/plain-loop.md.

    Args:
        workload: Freshly built; its model is changed in place.
        tuned: How to train it.
    """

    def __init__(self, workload: Workload, tuned: Tuned) -> None:
        shuffle = workload.sampler is None and not isinstance(workload.dataset, IterableDataset)
        self.loader = tuned.dataloader(
            workload.dataset, shuffle=shuffle or None, sampler=workload.sampler, collate_fn=Counted(workload),
            worker_init_fn=workload.worker_init_fn,
        )  # fmt: skip
        self.workload = workload
        self.tuned = tuned
        self.optimizer = workload.make_optimizer()
        self.model, _ = tuned.prepare(workload.model, self.optimizer)
        self.model.train()
        self.scaler = tuned.scaler()

    def steps(self) -> Iterator[int]:
        """Optimizer steps without end; yields the samples of each."""
        workload, model, optimizer, scaler = self.workload, self.model, self.optimizer, self.scaler
        while True:
            for micro_batches in self.tuned.accumulate(self.loader):
                samples = 0
                for count, batch in micro_batches:
                    with self.tuned.autocast():
                        loss = workload.loss(model, batch) / len(micro_batches)
                    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                    samples += count
                if workload.clip_grad_norm is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), workload.clip_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                yield samples


def time_starts(path: Path, device: str, pairs: int, seed: int = 0) -> Extra:
    """Runs both scripts in turn, in random order, and times each from outside."""
    scripts = {"bare": BARE, "with_autotune": TUNED}
    seconds: dict[str, list[float]] = {name: [] for name in scripts}
    rng = random.Random(seed)
    for pair in range(pairs + 1):
        for name in rng.sample(list(scripts), k=len(scripts)):
            command = [sys.executable, "-c", scripts[name], device, str(path.resolve())]
            began = time.perf_counter()
            subprocess.run(command, check=True, cwd=ROOT)
            if pair:  # the first fills the file cache, and writes the byte code
                seconds[name].append(time.perf_counter() - began)
    mean, ci95 = mean_difference(seconds["bare"], seconds["with_autotune"])
    return Extra(seconds=mean, ci95=ci95, bare=seconds["bare"], with_autotune=seconds["with_autotune"])


def mean_difference(before: Sequence[float], after: Sequence[float]) -> tuple[float, Ends]:
    """Mean of the pairs' differences, after less before, with Student's t interval."""
    differences = [new - old for old, new in zip(before, after, strict=True)]
    mean = statistics.fmean(differences)
    half = student_t(len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    return mean, Ends(mean - half, mean + half)


def time_loops(target: str, side_json: str, device: str, seconds: float, seed: int) -> Rates:
    """Trains in both loops in this process, in turns, for at least so many seconds in each."""
    side = Side.model_validate_json(side_json)
    torch.manual_seed(seed)
    set_process(side.config, torch.device(device))
    by_hand = Loop(load_workload(target, side.parameters), side.config, device)
    readme = ReadmeLoop(load_workload(target, side.parameters), Tuned(side.config, device=device))
    loops = {"by_hand": by_hand.steps(), "with_autotune": readme.steps()}
    for steps in loops.values():
        for _ in range(WARMUP_STEPS):
            next(steps)
        take_turn(steps, by_hand.synchronize, WARMUP_SHARE * seconds)
    samples, taken = dict.fromkeys(loops, 0), dict.fromkeys(loops, 0.0)
    rng = random.Random(seed)
    while min(taken.values()) < seconds:
        for name in rng.sample(list(loops), k=len(loops)):
            # While the other trained, workers have filled the queue.
            take_turn(loops[name], by_hand.synchronize, SETTLE_SHARE * seconds)
            more, longer = take_turn(loops[name], by_hand.synchronize, TURN_SHARE * seconds)
            samples[name] += more
            taken[name] += longer
    return Rates(**{name: samples[name] / taken[name] for name in loops})


def take_turn(steps: Iterator[int], synchronize: Callable[[], None], seconds: float) -> tuple[int, float]:
    """Whole optimizer steps that take at least so long: their samples, and the seconds that they took."""
    synchronize()
    began = time.perf_counter()
    samples = 0
    while time.perf_counter() - began < seconds:
        samples += next(steps)
    synchronize()
    return samples, time.perf_counter() - began


def total(start: Extra, rate: Ratio, training_seconds: float) -> Cost:
    """What the start and the loop take of a training of this length; the intervals add up as independent errors do."""
    share = start.seconds / training_seconds + 1 - rate.ratio
    below = math.hypot((start.seconds - start.ci95.low) / training_seconds, rate.ci95.high - rate.ratio)
    above = math.hypot((start.ci95.high - start.seconds) / training_seconds, rate.ratio - rate.ci95.low)
    return Cost(share=share, ci95=Ends(share - below, share + above))


def default_result() -> Path | None:
    """The digits' result of this machine, else of any; None when there is none."""
    here = sorted((ROOT / "results" / probe_host().slug).glob(DEFAULT_RESULTS))
    return next(iter([*here, *sorted(ROOT.glob(f"results/*/{DEFAULT_RESULTS}"))]), None)


def measure(path: Path, rounds: int, seconds: float, starts: int, training_seconds: float) -> dict[str, Any]:
    """Both costs of a result's best config, and what they come to."""
    result = read_result(path)
    device = device_of(result)
    start = time_starts(path, device, starts)
    side_json = result.best.model_dump_json()
    measured: list[Rates] = []
    foreign: list[float] = []
    for number in range(rounds):
        rates, taken = afresh_watched(time_loops, result.workload.target, side_json, device, seconds, number)
        measured.append(rates)
        foreign.append(taken)
        print(
            f"  round {number + 1}: by hand {rates.by_hand:.1f} samples/s, with autotune {rates.with_autotune:.1f}; "
            f"other processes took {taken:.0%} of the CPUs",
            file=sys.stderr,
        )
    by_hand, with_autotune = ([getattr(one, name) for one in measured] for name in Rates._fields)
    ratio = paired_ratio(by_hand, with_autotune)
    cost = total(start, ratio, training_seconds)
    return {
        "result": path.name,
        "workload": result.workload.name,
        "device": device,
        "config": result.best.config.model_dump(mode="json"),
        "start": start.model_dump(mode="json"),
        "rate": ratio.model_dump(mode="json"),
        "rates": {"by_hand": by_hand, "with_autotune": with_autotune},
        "foreign_cpu_fraction": foreign,
        "seconds_per_loop_and_round": seconds,
        "training_seconds": training_seconds,
        "cost": cost.model_dump(mode="json") | {"goal": GOAL, "met": cost.met, "beyond_doubt": cost.beyond_doubt},
    }


def describe(figures: dict[str, Any]) -> str:
    """All figures, as lines."""
    start, cost = Extra.model_validate(figures["start"]), Cost.model_validate(figures["cost"])
    minutes = figures["training_seconds"] / 60
    return (
        f"{figures['workload']} on {figures['device']} ({figures['result']})\n"
        f"  start: {start.seconds:+.3f} s ({start.ci95.low:+.3f} – {start.ci95.high:+.3f}) on top of "
        f"{statistics.fmean(start.bare):.2f} s\n"
        f"  the documented loop is {Ratio.model_validate(figures['rate'])} as fast as the one by hand\n"
        f"  of {minutes:g} minutes of training: {cost.share:+.2%} ({cost.ci95.low:+.2%} – {cost.ci95.high:+.2%}), "
        f"goal {GOAL:.0%}: {'met' if cost.met else 'NOT met'}{'' if cost.beyond_doubt else ', within the noise'}"
    )


def duration(text: str) -> float:
    """Seconds of a duration that was typed."""
    try:
        return parse_duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and saves; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?", help=f"by default {DEFAULT_RESULTS}, of this machine if it can")
    parser.add_argument("--rounds", type=at_least_two, default=6, help="processes in which both loops are trained")
    parser.add_argument("--seconds", type=float, default=20.0, help="of training in each loop, in each round")
    parser.add_argument("--starts", type=at_least_two, default=15, help="of either script")
    parser.add_argument(
        "--training", type=duration, default=600.0, help="length, such as 10m, that the start is a share of"
    )
    asked = parser.parse_args(arguments)
    path = asked.result or default_result()
    if path is None:
        parser.error(f"there is no {DEFAULT_RESULTS} in results/; name a result file of autotune")
    try:
        figures = measure(path, asked.rounds, asked.seconds, asked.starts, asked.training)
    except AutotuneError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    print(describe(figures))
    print(f"written to {save('import_cost', figures)}")
    return int(figures["cost"]["ci95"][0] > GOAL)


if __name__ == "__main__":
    sys.exit(main())
