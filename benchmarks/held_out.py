"""What does a tuning reach on workloads that it was not developed on? Real tunings, then an independent loop.

    python -m benchmarks.held_out                          # all ten, up to twelve minutes each
    python -m benchmarks.held_out unet graphs --folder /tmp/held   # some; a second run reads the tunings of the first
    python -m benchmarks.held_out tiny_layers --quick      # two minutes, to see that it runs

Each workload of `benchmarks.held_out_workloads` is tuned by the real command, for 30 s and for 2 minutes, and once more
for 5 minutes with another seed. Result files and journals stay in the folder. Then the baseline and the answers of all
three train in the independent loop (`benchmarks.alternate`): fresh processes in each round, in turns
of half a second in random order. Equal configs train once, but for the baseline and the last budget's answer, which
always train beside each other. The best known config is the fastest there.

The figures of a workload are:

- candidates decided, whether one that compiles trained, and the share of the budget in warm-up and timed steps;
- each answer's rate over that of the best known;
- the claim against the realised ratio;
- how fresh processes of one config differ, without what a round changes for all;
- a side's rate in the proof over that in the loop.

Each workload is written as soon as it is known, into benchmarks/output/held_out.json, where the others stay. The exit
status is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autotune.hardware import probe_host
from autotune.measuring import Outcome
from autotune.measuring.pairs import UNKNOWN
from autotune.results.result import CONFIRM, Result, Side, TrialRecord, read_result
from benchmarks.alternate import Run, realise
from benchmarks.held_out_workloads import NAMES, target
from benchmarks.output import save, saved
from benchmarks.ratios import paired_ratio
from benchmarks.replicate import SIDES, TOLERANCE, Verdict, at_least_two, claim, device_of, realised_in, row

BUDGETS, BEST_KNOWN_BUDGET = ("30s", "2m"), "5m"
ROUNDS, SECONDS = 6, 24.0
QUICK_BUDGETS, QUICK_BEST_KNOWN_BUDGET, QUICK_ROUNDS, QUICK_SECONDS = ("15s", "20s"), "20s", 2, 2.0
SEED, OTHER_SEED = 0, 1
BASELINE, ANSWER = SIDES
SHORT_STEP_SECONDS = 0.1
DECIDED, DECIDED_LONG_STEPS = 60, 25
TIMED, FRACTION_EARLY, FRACTION_LATE = 0.75, 0.90, 0.97
HALF_WIDTH_MEDIAN, HALF_WIDTH_WORST = 0.04, 0.08
SPREAD, PROOF_OFF = 0.02, 0.02
"""The goals. The last budget decides `DECIDED` candidates or more where a step is shorter than `SHORT_STEP_SECONDS`,
else `DECIDED_LONG_STEPS`. Steps take that share of it. Answers reach a fraction of the best known: after the first
budget in the mean, after the last one each. The rest limits half-widths of claims, the standard deviation of processes,
and how far a rate of the proof is off that of the loop."""


def tuned(model: str, budget: str, seed: int, folder: Path) -> Result:
    """A tuning by the real command; one whose file lies in the folder is read.

    Raises:
        RuntimeError: The command failed.
    """
    out = folder / f"{budget}-seed-{seed}.json"
    if not out.exists():
        command = [sys.executable, "-m", "autotune", "--model", model, "--budget", budget, "--seed", str(seed)]
        process = subprocess.run([*command, "--out", str(out), "--quiet"], stderr=subprocess.PIPE, text=True)
        if process.returncode or not out.exists():
            raise RuntimeError(f"{' '.join(command)} ended with exit status {process.returncode}: {process.stderr}")
    return read_result(out)


def tuning_figures(result: Result) -> dict[str, Any]:
    """What a tuning says of itself."""
    searched = [one for one in result.trials if one.changes and one.stage != CONFIRM]
    decided = {_named(one) for one in searched if _is_decided(one)}
    return {
        "decided": len(decided),
        "failed": len({_named(one) for one in searched if one.outcome is not Outcome.OK} - decided),
        "compiled": any(one.changes.get("compile_mode") and one.outcome is Outcome.OK for one in searched),
        "timed_fraction": result.search.measuring_fraction,
        "seconds": result.search.seconds,
        "stopped_by": result.stopped_by,
        "changed_knobs": result.changed_knobs,
        "claimed": claim(result).model_dump(mode="json") if result.speedup is not None else None,
    }


def _named(trial: TrialRecord) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(trial.changes.items()))


def _is_decided(trial: TrialRecord) -> bool:
    """Whether it trained beside the incumbent for long enough to say something."""
    if trial.outcome is not Outcome.OK or trial.ratio is None or trial.ci95 is None:
        return False
    return math.log(trial.ci95.high / trial.ci95.low) / 2 <= 0.99 * math.log(UNKNOWN)


def sides_of(results: Mapping[str, Result], judged: str) -> tuple[dict[str, Side], dict[str, str]]:
    """What trains in the loop, by name, and the name that the answer of each tuning has there.

    Args:
        results: By name.
        judged: The one whose baseline and answer always train, though they be equal.
    """
    sides = {BASELINE: results[judged].baseline, ANSWER: results[judged].best}
    roles = {judged: ANSWER}
    for name, result in results.items():
        if name != judged:
            alike = [role for role in (ANSWER, *sides) if sides[role].point == result.best.point]
            roles[name] = alike[0] if alike else f"answer after {name}"
            sides.setdefault(roles[name], result.best)
    return sides, roles


def process_spread(rates: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Standard deviation of the logarithms of each side's rates, without what a round changes for all sides.

    What is left of a side holds a share of the others' variance too, which is taken off (Grubbs, *Errors of
    Measurement*, Technometrics 1973); the variances of two sides alone cannot be separated, and count as equal.

    Args:
        rates: Of two sides or more, in the same rounds.
    """
    logs = {name: [math.log(rate) for rate in values] for name, values in rates.items()}
    of_rounds = [statistics.fmean(values) for values in zip(*logs.values(), strict=True)]
    count = len(logs)
    variances = {
        name: statistics.variance(own - common for own, common in zip(values, of_rounds, strict=True))
        for name, values in logs.items()
    }
    together = math.fsum(variances.values()) * count / (count - 1)
    if count == 2:
        return {name: math.sqrt(together / 2) for name in logs}
    return {name: math.sqrt(max(0.0, one - together / count**2) / (1 - 2 / count)) for name, one in variances.items()}


def judged_row(results: Mapping[str, Result], last: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """The figures of a workload.

    Args:
        results: Of its tunings, by name; the first is the shortest one.
        last: The one whose claim is judged.
        runs: Of all sides in the loop.
    """
    sides, roles = sides_of(results, last)
    rates = {name: [run.samples_per_second for run in runs[name]] for name in sides}
    means = {name: statistics.geometric_mean(values) for name, values in rates.items()}
    best = max(means, key=lambda name: means[name])
    of_best = {name: paired_ratio(rates[best], rates[role]).model_dump(mode="json") for name, role in roles.items()}
    result = results[last]
    verdict = Verdict(claimed=claim(result), **realised_in(runs))
    low, high = verdict.claimed.ci95
    proved = result.speedup is not None
    foreign = [run.foreign_cpu_fraction or 0.0 for one in runs.values() for run in one]
    return {
        "step_seconds": result.baseline.config.effective_batch / means[BASELINE],
        "tunings": {name: tuning_figures(one) for name, one in results.items()},
        "best_known": {"side": best, "changed_knobs": sides[best].point.changes_from(result.baseline.point)},
        "of_best_known": of_best,
        "claim": row(verdict)
        | {"covers": low <= verdict.realised.ratio <= high if proved else None}
        | {"half_width": (high - low) / 2 / verdict.claimed.ratio if proved else None},
        "process_spread": {name: spread for name, spread in process_spread(rates).items() if name in SIDES},
        "proof_over_loop": {
            name: side.measurement.samples_per_second / means[name]
            for name, side in sides.items()
            if name in SIDES and proved and side.measurement is not None
        },
        "foreign_cpu_fraction": statistics.fmean(foreign),
    }  # fmt: skip


def measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Tunes a workload, and trains what came of it."""
    folder.mkdir(parents=True, exist_ok=True)
    longest = f"{options.best_known_budget}, seed {OTHER_SEED}"
    results = {}
    for budget in options.budgets:
        results[budget] = tuned(target(name), budget, SEED, folder)
        print(f"  {budget}: {results[budget].search.bursts} bursts", file=sys.stderr, flush=True)
    results[longest] = tuned(target(name), options.best_known_budget, OTHER_SEED, folder)
    last = options.budgets[-1]
    sides, _ = sides_of(results, last)
    runs = realise(target(name), sides, device_of(results[last]), options.seconds, options.rounds)
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": probe_host().slug,
        "seconds_per_side": options.seconds,
        "rounds": options.rounds,
        "first": options.budgets[0],
        "last": last,
        **judged_row(results, last, runs),
    }


def decided_goal(figures: dict[str, Any]) -> int:
    """Candidates that the last budget should decide."""
    return DECIDED if figures["step_seconds"] < SHORT_STEP_SECONDS else DECIDED_LONG_STEPS


def together(rows: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What all workloads say in one, each figure with its goal."""
    every = list(rows.values())
    last = [one["tunings"][one["last"]] for one in every]
    late = [one["of_best_known"][one["last"]]["ratio"] for one in every]
    proved = [one["claim"] for one in every if one["claim"]["half_width"] is not None]
    widths = [one["half_width"] for one in proved]
    decided = [one["decided"] >= decided_goal(all_) for one, all_ in zip(last, every, strict=True)]
    spreads = [spread for one in every for spread in one["process_spread"].values()]
    proofs = [abs(ratio - 1) for one in every for ratio in one["proof_over_loop"].values()]

    def counted(figure: str, holds: Sequence[bool]) -> dict[str, Any]:
        value = f"{sum(holds)} of {len(holds)}"
        return {"figure": figure, "value": value, "goal": f"{len(holds)} of {len(holds)}", "met": all(holds)}

    def least(figure: str, value: float, goal: float) -> dict[str, Any]:
        return {"figure": figure, "value": value, "goal": f"≥ {goal:g}", "met": value >= goal}

    def most(figure: str, value: float, goal: float) -> dict[str, Any]:
        return {"figure": figure, "value": value, "goal": f"≤ {goal:g}", "met": value <= goal}

    overall = [
        counted(f"decide {DECIDED} candidates, or {DECIDED_LONG_STEPS} with long steps", decided),
        least("least share of the budget in steps", min(one["timed_fraction"] for one in last), TIMED),
        least(
            "of the best known, after the first budget, mean",
            statistics.fmean(one["of_best_known"][one["first"]]["ratio"] for one in every),
            FRACTION_EARLY,
        ),
        counted(f"reach {FRACTION_LATE:g} of the best known, after the last budget",
                [one >= FRACTION_LATE for one in late]),
        most("largest standard deviation of a side's processes", max(spreads), SPREAD),
    ]  # fmt: skip
    if proved:
        overall += [
            counted(f"claims come true within {TOLERANCE:.0%}", [one["within_tolerance"] for one in proved]),
            counted("intervals of claims cover the realised ratio", [one["covers"] for one in proved]),
            most("half-width of a claim, median", statistics.median(widths), HALF_WIDTH_MEDIAN),
            most("half-width of a claim, worst", max(widths), HALF_WIDTH_WORST),
            most("a side's rate in the proof, off the loop, worst", max(proofs), PROOF_OFF),
        ]
    return overall


def text(name: str, figures: dict[str, Any]) -> str:
    """The figures of a workload, as lines."""
    last, claimed = figures["tunings"][figures["last"]], figures["claim"]
    spreads = ", ".join(f"{side} {one:.1%}" for side, one in figures["process_spread"].items())
    proofs = ", ".join(f"{side} {one:.3f}" for side, one in figures["proof_over_loop"].items())
    width = f"± {claimed['half_width']:.1%}" if claimed["half_width"] is not None else "no claim"
    covers = {None: "", True: ", covered", False: ", NOT covered"}[claimed["covers"]]
    fractions = ", ".join(f"{one['ratio']:.3f} after {budget}" for budget, one in figures["of_best_known"].items())
    return "\n".join(
        [
            f"{name}: a step takes {1000 * figures['step_seconds']:.1f} ms, on {figures['machine']}; other processes "
            f"took {figures['foreign_cpu_fraction']:.0%} of the CPUs",
            f"  decided {last['decided']} (goal {decided_goal(figures)}), "
            f"{'compiled' if last['compiled'] else 'compiled nothing'}, "
            f"{last['timed_fraction']:.0%} in steps (goal {TIMED:.0%})",
            f"  of the best known ({figures['best_known']['side']}): {fractions} (goals {FRACTION_EARLY:.2f} in the "
            f"mean after {figures['first']}, {FRACTION_LATE:.2f} after {figures['last']})",
            f"  claimed {claimed['claimed']['ratio']:.3f} × ({width}), realised {claimed['realised']['ratio']:.3f} ×: "
            f"{claimed['off']:+.1%} (goal {TOLERANCE:.0%}){covers}",
            f"  processes differ by {spreads} (goal {SPREAD:.0%}); proof over loop {proofs or '–'} "
            f"(goal within {PROOF_OFF:.0%})",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and saves each workload; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="workload", help=f"of {', '.join(NAMES)}; all when left out")
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), help="of the tunings; the last one is judged")
    parser.add_argument("--best-known-budget", default=BEST_KNOWN_BUDGET, help="of one more, with another seed")
    parser.add_argument("--rounds", type=at_least_two, default=ROUNDS, help="of fresh processes, in the loop")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of training in the loop, for each side")
    parser.add_argument("--folder", type=Path, help="for result files; those that it holds are not tuned again")
    parser.add_argument("--quick", action="store_true", help="short and few: a smoke test")
    options = parser.parse_args(arguments)
    if unknown := set(options.workloads) - set(NAMES):
        parser.error(f"expected some of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}")
    if options.quick:
        options.budgets, options.best_known_budget = list(QUICK_BUDGETS), QUICK_BEST_KNOWN_BUDGET
        options.rounds, options.seconds = QUICK_ROUNDS, QUICK_SECONDS
    folder = options.folder or Path(tempfile.mkdtemp(prefix="held-out-"))
    print(f"result files and journals: {folder}", file=sys.stderr)
    for name in options.workloads or NAMES:
        figures = measure(name, options, folder / name)
        print(text(name, figures), flush=True)
        rows = saved("held_out").get("workloads", {}) | {name: figures}
        rows = {one: rows[one] for one in NAMES if one in rows}
        overall = together(rows)
        written = save("held_out", {"together": overall, "workloads": rows})
    for one in overall:
        value = one["value"] if isinstance(one["value"], str) else f"{one['value']:.3f}"
        print(f"{one['figure']}: {value} (goal {one['goal']}){'' if one['met'] else ': NOT met'}")
    print(f"written to {written}")
    return int(not all(one["met"] for one in overall))


if __name__ == "__main__":
    sys.exit(main())
