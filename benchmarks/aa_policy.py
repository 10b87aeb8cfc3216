"""A/A test of the whole policy: how often does a tuning report a gain where nothing can be faster?

    python -m benchmarks.aa_policy --count 40              # a quarter of an hour, added to those that are known
    python -m benchmarks.aa_policy --count 40 --neighbour  # beside a neighbour that bursts (benchmarks.neighbour)
    python -m benchmarks.aa_policy --made-up               # 1,200 searches on a made-up surface, ten minutes, no clock

The real driver tunes five workloads in turn with a real budget and real processes: search, finalists, confirmation.
Only what it runs is replaced: every config that it wants trained is the baseline's (`SameRunner`). Each sixth tuning is
interrupted at a random moment and resumed with a budget of its own; a gain in its partial result counts too. Tunings
with a round of the proof are counted beside.

The made-up surface (`tests.search.surface`) has a virtual clock, and processes that differ by 1, 5 and 10 %. Beside the
product's rule, it shows how often others would report a gain: `autotune.measuring.speedup.BEYOND_DOUBT` is from it.

Writes benchmarks/output/aa_policy.json after each tuning. The exit status is 1 when more gains are reported than a 95 %
interval allows on that side, 2.5 of 100.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner, look_at_machine, make_runner
from autotune.errors import Interrupted
from autotune.hardware import Hardware
from autotune.knobs import build_space
from autotune.measuring import Agreement, Burst, NumericsGuard, Pair, Point, Speedup
from autotune.measuring.progress import Progress
from autotune.measuring.speedup import BEYOND_DOUBT
from autotune.results.result import CONFIRM
from autotune.search.bursts import Bursts
from autotune.search.driver import Search
from autotune.search.stopping import Budget
from autotune.search.storage import open_study
from autotune.search.trials import TrialLog
from autotune.sessions.tuning_result import judge
from benchmarks.held_out_workloads import target
from benchmarks.neighbour import neighbour
from benchmarks.output import save, saved
from benchmarks.ratios import share_interval
from tests.search.surface import make_search

TARGETS = {
    "digits": "benchmarks.digits:build",
    **{name: target(name) for name in ("tiny_layers", "series", "scenes", "signals")},
}
COUNT, BUDGET_SECONDS = 40, 20.0
"""Seconds without looking at the workload. A gain needs three rounds: with 15 s, beside another program, none of five
tunings had them."""
RESUMED_EACH, EARLIEST, LATEST = 6, 0.2, 1.0
"""Each so many-th tuning is interrupted, after a share of its budget between these two."""
START_SECONDS = 60.0
MEMORY_TARGET = 0.9
ALLOWED = 0.025
QUIET, NEIGHBOUR, MADE_UP = "quiet", "neighbour", "made_up"
SPREADS, SEEDS, MADE_UP_BUDGETS = (0.01, 0.05, 0.10), 200, (25.0, 60.0)
DOUBTS = tuple(sorted({1.0, BEYOND_DOUBT, 1.5}))
"""Half-widths above 1 from which on a gain would be reported."""


class SameRunner:
    """Runs the baseline, whatever point it should run: a `Runner` on which nothing is faster.

    Args:
        runner: Runs it.
        baseline: What is always run.
    """

    def __init__(self, runner: ProcessRunner, baseline: Point) -> None:
        self._runner = runner
        self._baseline = baseline

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """The baseline's burst, as that of a point."""
        return self._runner.run(self._baseline, plan, deadline_seconds).model_copy(update={"point": point})

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """A round of as many fresh processes, all of the baseline."""
        bursts = self._runner.play([self._baseline] * len(points), plan, deadline_seconds)
        return [burst.model_copy(update={"point": point}) for point, burst in zip(points, bursts, strict=True)]

    def challenge(
        self,
        incumbent: Point | None,
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        on_pair: Callable[[Point, Pair], None],  # noqa: ARG002 - which candidate it is about cannot be seen
    ) -> list[tuple[Burst, Pair | None]]:
        """The baseline against itself, as often as there are candidates."""
        partner, same = self._baseline if incumbent is not None else None, [self._baseline] * len(candidates)
        played = self._runner.challenge(partner, same, plan, deadline_seconds, lambda *_: None)
        return [
            (
                burst.model_copy(update={"point": point}),
                pair.model_copy(update={"partner": incumbent}) if pair is not None else None,
            )
            for point, (burst, pair) in zip(candidates, played, strict=False)
        ]

    def close(self) -> None:
        """Ends all that lives between challenges."""
        self._runner.close()

    def agreement(self, _: Point, steps: int, deadline_seconds: float) -> Agreement:
        """The baseline beside eager fp32."""
        return self._runner.agreement(self._baseline, steps, deadline_seconds)


class Opened(NamedTuple):
    """A workload whose processes can be started, on a machine that was looked at."""

    isolation: Isolation
    hardware: Hardware


def opened(model: str, stack: contextlib.ExitStack) -> Opened:
    """Imports a workload; its processes live as long as the stack."""
    isolation = stack.enter_context(Isolation(model))
    isolation.start(START_SECONDS)
    return Opened(isolation, look_at_machine(isolation, START_SECONDS))


def make_policy(at: Opened, number: int, budget_seconds: float, journal: Path, *, resume: bool) -> Search:
    """A search as `autotune --model` makes it, but for the runner; its budget begins now.

    Args:
        at: Where it runs.
        number: Of the tuning: its seed.
        budget_seconds: Without looking at the workload.
        journal: Where its trials are kept.
        resume: Whether trials that are kept there are known.
    """
    runner = make_runner(
        at.isolation, at.hardware, "cpu", memory_target=MEMORY_TARGET, note=lambda _: None, seed=number
    )
    facts = runner.check(START_SECONDS)
    baseline = Point(config=facts.baseline)
    space = build_space(
        at.hardware, facts, device="cpu", effective_batch=facts.baseline.effective_batch, budget_seconds=budget_seconds
    )
    study = open_study(
        name=f"same-{number}", storage=None, journal=journal, sampler="bayes", seed=number,
        attributes={"target": facts.target, "objective": "samples_per_second"}, resume=resume,
    )  # fmt: skip
    same = SameRunner(runner, baseline)
    limit = at.hardware.memory_limit_bytes("cpu", MEMORY_TARGET)
    bursts = Bursts(baseline, same, TrialLog(study, space), Budget(budget_seconds), Progress(), "cpu", limit)
    return Search(space, bursts, seed=number, numerics=NumericsGuard(same.agreement, baseline), headroom=True)


def tune(at: Opened, name: str, number: int, budget_seconds: float, folder: Path) -> dict[str, Any]:
    """One tuning, as it is written."""
    began, journal = time.monotonic(), folder / f"{name}-{number}.journal"
    partly = None
    if number % RESUMED_EACH == RESUMED_EACH - 1:
        partly = interrupted(TARGETS[name], number, budget_seconds, journal)
    search = make_policy(at, number, budget_seconds, journal, resume=partly is not None)
    search.run()
    ends = [one for one in (partly, outcome(search)) if one is not None]
    trials = search.log.trials
    return {
        "number": number,
        "workload": name,
        "resumed": partly is not None,
        "gain": any(one["gain"] for one in ends),
        "ends": ends,
        "searched": sum(trial.round is None for trial in trials),
        "rounds": len({trial.round for trial in trials if trial.stage == CONFIRM}),
        "seconds": time.monotonic() - began,
    }


def interrupted(model: str, number: int, budget_seconds: float, journal: Path) -> dict[str, Any]:
    """What a tuning that is interrupted would have written; it may have ended before."""
    after = random.Random(number).uniform(EARLIEST, LATEST) * budget_seconds
    with contextlib.ExitStack() as stack:
        at = opened(model, stack)
        search = make_policy(at, number, budget_seconds, journal, resume=False)
        timer = threading.Timer(after, at.isolation.interrupt)
        timer.start()
        with contextlib.suppress(Interrupted):
            search.run()
        timer.cancel()
        return outcome(search)


def outcome(search: Search) -> dict[str, Any]:
    """Whether a gain is reported, and the best finalist beside the baseline."""
    best = next(iter(search.confirmation.confirmed()), None)
    return {
        "gain": judge(search, "budget")[1] is not None,
        "best_finalist": best.speedup.model_dump(mode="json", exclude={"blocks"}) if best is not None else None,
    }


def run(condition: str, count: int, budget_seconds: float) -> None:
    """Tunes so often, and writes each tuning."""
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        places: dict[str, Opened] = {}
        for _ in range(count):
            figures = saved("aa_policy")
            earlier = figures.get(condition, {}).get("tunings", [])
            number = len(earlier)
            name = list(TARGETS)[number % len(TARGETS)]
            places[name] = places.get(name) or opened(TARGETS[name], stack)
            with neighbour(seed=number) if condition == NEIGHBOUR else contextlib.nullcontext():
                tuning = tune(places[name], name, number, budget_seconds, Path(folder))
            tuning["budget_seconds"] = budget_seconds
            print(f"  {condition} {number + 1}, {name}: {shown(tuning)}", file=sys.stderr, flush=True)
            tunings = [*earlier, tuning]
            save("aa_policy", kept(figures) | {condition: {**counted(tunings), "tunings": tunings}})


def kept(figures: dict[str, Any]) -> dict[str, Any]:
    """What other runs have measured."""
    return {part: figures[part] for part in (QUIET, NEIGHBOUR, MADE_UP) if part in figures}


def counted(tunings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many report a gain, of how many, the interval of that share, and how many had rounds enough for a claim."""
    gains = sum(one["gain"] for one in tunings)
    raced = sum(any(end["best_finalist"] is not None for end in one["ends"]) for one in tunings)
    ci95 = list(share_interval(gains, len(tunings)))
    return {"repeats": len(tunings), "gains": gains, "ci95": ci95, "with_rounds_enough": raced}


def shown(tuning: dict[str, Any]) -> str:
    """One tuning."""
    best = tuning["ends"][-1]["best_finalist"]
    finalist = f"best finalist {best['ratio']:.3f} ×, {best['pairs']} pairs" if best is not None else "no finalist"
    gain = "A GAIN" if tuning["gain"] else "no gain"
    how = f"{tuning['searched']} bursts, {tuning['rounds']} rounds, {tuning['seconds']:.0f} s"
    return f"{gain}, {finalist} ({how}{', resumed' if tuning['resumed'] else ''})"


def made_up(budget_seconds: float, spread: float, seed: int) -> list[bool]:
    """Whether a search of a surface without gains reports one, by each of `DOUBTS`.

    Args:
        budget_seconds: Of the search; the shorter one holds one to three rounds.
        spread: Standard deviation by which processes of one config differ.
        seed: Of all that is drawn.
    """
    search, _ = make_search(lambda _: 1000.0, noise=spread, seed=seed, budget_seconds=budget_seconds)
    search.run()
    finalists = [one.speedup for one in search.confirmation.confirmed()]
    return [any(would_report(one, doubt) for one in finalists) for doubt in DOUBTS]


def would_report(speedup: Speedup, doubt: float) -> bool:
    """Whether a gain lies `doubt` half-widths of its interval above 1, or more."""
    return bool(speedup.ratio * (speedup.ci95.low / speedup.ratio) ** doubt > 1)


def made_up_rows(seeds: int) -> list[dict[str, Any]]:
    """For each spread, how many searches report a gain by each rule."""
    rows = []
    with ProcessPoolExecutor(2) as pool:
        for budget, spread in itertools.product(MADE_UP_BUDGETS, SPREADS):
            searches = pool.map(made_up, [budget] * seeds, [spread] * seeds, range(seeds), chunksize=max(1, seeds // 8))
            found = list(searches)
            gains = {str(doubt): sum(column) for doubt, column in zip(DOUBTS, zip(*found, strict=True), strict=True)}
            rows.append({"budget_seconds": budget, "process_spread": spread, "searches": seeds, "gains": gains})
            print(
                f"  {budget:.0f} s, processes that differ by {spread:.0%}: {gains} of {seeds}",
                file=sys.stderr,
                flush=True,
            )
    return rows


def report(figures: dict[str, Any]) -> str:
    """What is known, a line each."""
    lines = []
    for condition in (QUIET, NEIGHBOUR):
        if (found := figures.get(condition)) is not None:
            low, high = found["ci95"]
            share = f"{found['gains']} of {found['repeats']} report a gain (95 % interval {low:.1%} – {high:.1%})"
            resumed = sum(one["resumed"] for one in found["tunings"])
            raced = f"{found['with_rounds_enough']} of them had rounds enough for a claim"
            lines.append(f"{condition}: {share}; {raced}, {resumed} were interrupted and resumed")
    for row in figures.get(MADE_UP, []):
        by = ", ".join(f"{gains} with {doubt}" for doubt, gains in row["gains"].items())
        where = f"made up, {row['budget_seconds']:.0f} s, processes {row['process_spread']:.0%} apart"
        lines.append(f"{where}: of {row['searches']} report a gain {by}")
    return "\n".join(lines)


def met(figures: dict[str, Any]) -> bool:
    """Whether gains are reported as rarely as they should be."""
    real = [figures[condition] for condition in (QUIET, NEIGHBOUR) if condition in figures]
    virtual = [(row["gains"][str(BEYOND_DOUBT)], row["searches"]) for row in figures.get(MADE_UP, [])]
    shares = [*((one["gains"], one["repeats"]) for one in real), *virtual]
    return all(gains <= ALLOWED * total for gains, total in shares)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tunes, prints and saves; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help="tunings to add to those that are known")
    parser.add_argument("--neighbour", action="store_true", help="beside a neighbour that bursts")
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS", help="of a tuning")
    parser.add_argument("--made-up", action="store_true", help="instead: searches on a made-up surface")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of those, for each spread")
    parser.add_argument("--afresh", action="store_true", help="forget the tunings that this run would add to")
    options = parser.parse_args(arguments)
    condition = MADE_UP if options.made_up else NEIGHBOUR if options.neighbour else QUIET
    if options.afresh:
        save("aa_policy", {part: one for part, one in kept(saved("aa_policy")).items() if part != condition})
    if options.made_up:
        save("aa_policy", kept(saved("aa_policy")) | {MADE_UP: made_up_rows(options.seeds)})
    else:
        run(condition, options.count, options.budget)
    figures = kept(saved("aa_policy"))
    print(report(figures))
    return int(not met(figures))


if __name__ == "__main__":
    sys.exit(main())
