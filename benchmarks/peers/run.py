"""autotune beside other tools: each chooses a config in the same budget, then all are trained in the independent loop.

    python -m pip install -c constraints.txt -e '.[benchmarks,peers]'
    python -m benchmarks.peers.run benchmarks.digits:build --budget 60 --seconds 30 --rounds 3

Every tool runs as its users run it, one after the other, alone on the machine. Tools without a budget of their own may
take three times as long before they are ended; what they had found by then counts. Then each different config is
trained in interleaved rounds, as `benchmarks.replicate` does, and compared by samples per second. autotune and the
general optimisers hold the effective batch. Where a batch finder or loadtune does not, and so changes what is learned,
autotune searches once more with ``--effective-batch free``: like is compared with like.

Prints a table a workload and writes benchmarks/output/peers.json. The exit status is 1 when a tool came out ahead of
autotune beyond doubt.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel

from autotune.hardware import probe_host
from autotune.knobs.config import TrainConfig
from autotune.results.result import Side, read_result
from benchmarks.alternate import realise
from benchmarks.output import save, saved
from benchmarks.peers.choose import TOOLS, choices_in
from benchmarks.peers.finders import device_name
from benchmarks.ratios import Ratio, paired_ratio
from benchmarks.replicate import at_least_two

OURS, OURS_FREE = "autotune", "autotune --effective-batch free"
BASELINE = "baseline"
PATIENCE = 3
ROOT = Path(__file__).parents[2]


class Choice(BaseModel):
    """What a tool chose.

    Attributes:
        tool: Its name.
        config: Its last choice; the baseline where it made none.
        seconds: What it took.
        trouble: How it ended, if not well.
    """

    tool: str
    config: TrainConfig
    seconds: float
    trouble: str | None = None


def ask(tool: str, target: str, budget_seconds: float, baseline: TrainConfig) -> Choice:
    """Lets another tool choose, in a process that is ended with all its children when its patience is over."""
    command = [sys.executable, "-m", "benchmarks.peers.choose", tool, target, str(budget_seconds)]
    began = time.monotonic()
    # In a folder of its own: some tools write logs where they are started.
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [*command, baseline.model_dump_json()], stdout=printed, stderr=subprocess.STDOUT, cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            status = process.wait(PATIENCE * budget_seconds)
            trouble = f"exit status {status}" if status else None
        except subprocess.TimeoutExpired:
            trouble = f"ended after {PATIENCE} × its budget"
        finally:
            end(process)
        seconds = time.monotonic() - began
        printed.seek(0)
        text = printed.read()
    choices = choices_in(text)
    if trouble is not None:
        trouble = f"{trouble}: {next((line for line in reversed(text.splitlines()) if line.strip()), '')[:200]}"
    return Choice(tool=tool, config=choices[-1] if choices else baseline, seconds=seconds, trouble=trouble)


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process with everything below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.kill()
    process.wait()


def ask_autotune(target: str, budget_seconds: float, *, free: bool = False) -> tuple[Choice, TrainConfig]:
    """Our own command; returns the baseline too."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        command = [sys.executable, "-m", "autotune", "--model", target, "--budget", f"{budget_seconds:g}s"]
        freedom = ["--effective-batch", "free"] if free else []
        subprocess.run([*command, *freedom, "--out", str(out)], cwd=ROOT, check=True)
        result = read_result(out)
    tool = OURS_FREE if free else OURS
    choice = Choice(tool=tool, config=result.best.config, seconds=time.monotonic() - began)
    return choice, result.baseline.config


def compare(target: str, tools: Sequence[str], budget_seconds: float, seconds: float, rounds: int) -> dict[str, Any]:
    """All tools on one workload."""
    ours, baseline = ask_autotune(target, budget_seconds)
    choices = [ours, Choice(tool=BASELINE, config=baseline, seconds=0.0)]
    for tool in tools:
        choices.append(ask(tool, target, budget_seconds, baseline))
        print(describe(choices[-1], baseline), file=sys.stderr, flush=True)
    if any(choice.config.effective_batch != baseline.effective_batch for choice in choices):
        choices.append(ask_autotune(target, budget_seconds, free=True)[0])
        print(describe(choices[-1], baseline), file=sys.stderr, flush=True)
    known_as = {"target": target, "machine": probe_host().slug, "budget_seconds": budget_seconds}
    return known_as | train(target, choices, seconds, rounds)


def train(target: str, choices: Sequence[Choice], seconds: float, rounds: int) -> dict[str, Any]:
    """What was chosen, ours first and the baseline second, in interleaved rounds of the independent loop."""
    ours, baseline = choices[0], choices[1].config
    free = next((choice for choice in choices if choice.tool == OURS_FREE), ours)
    # What two tools chose alike is trained once.
    names = {choice.config: choice.tool for choice in reversed(choices)}
    sides = {name: Side(config=config, measurement=None) for config, name in names.items()}
    runs = realise(target, sides, device_name(), seconds, rounds)
    rates = {config: [run.samples_per_second for run in runs[name]] for config, name in names.items()}
    rows = [
        choice.model_dump(mode="json", exclude={"config"})
        | {
            "changes": {knob: now for knob, (_, now) in choice.config.changes_from(baseline).items()},
            "samples_per_second": statistics.geometric_mean(rates[choice.config]),
            "ours_over_it": ours_over(
                rates[(ours if choice.config.effective_batch == baseline.effective_batch else free).config],
                rates[choice.config],
            ).model_dump(),
            "foreign_cpu_fraction": max(run.foreign_cpu_fraction or 0.0 for run in runs[names[choice.config]]),
        }
        for choice in choices
    ]
    return {"seconds_each": seconds, "rounds": rounds, "rows": rows}


def ours_over(ours: Sequence[float], other: Sequence[float]) -> Ratio:
    """Our realised rate over another's; the same config is exactly 1."""
    return paired_ratio(other, ours)


def describe(choice: Choice, baseline: TrainConfig) -> str:
    """One line."""
    changes = ", ".join(f"{knob}={now}" for knob, (_, now) in choice.config.changes_from(baseline).items())
    trouble = f" ({choice.trouble})" if choice.trouble is not None else ""
    return f"{choice.tool}: {changes or 'the baseline'} in {choice.seconds:.0f} s{trouble}"


def table(compared: dict[str, Any]) -> str:
    """The realised rates of one workload, fastest first."""
    lines = [f"{compared['target']}, {compared['budget_seconds']:.0f} s each"]
    for row in sorted(compared["rows"], key=lambda row: -row["samples_per_second"]):
        ratio = Ratio.model_validate(row["ours_over_it"])
        changes = " ".join(f"{knob}={now}" for knob, now in row["changes"].items())
        lines.append(
            f"  {row['tool']:38}{row['samples_per_second']:9.1f} samples/s  autotune is {ratio} as fast"
            f"  {row['seconds']:4.0f} s  {changes or '(the baseline)'}{'  ' + row['trouble'] if row['trouble'] else ''}"
        )
    return "\n".join(lines)


def summary(all_compared: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric mean over the workloads of our realised rate over each tool's, and over the best tool's of each."""
    found: dict[str, list[float]] = {}
    for compared in all_compared:
        ratios = {
            row["tool"]: row["ours_over_it"]["ratio"]
            for row in compared["rows"]
            if row["tool"] not in {OURS, OURS_FREE}
        }
        found_tools = {tool: ratio for tool, ratio in ratios.items() if tool != BASELINE}
        for tool, ratio in ratios.items():
            found.setdefault(tool, []).append(ratio)
        found.setdefault("best of them", []).append(min(found_tools.values()))
        found.setdefault("all of them", []).append(statistics.geometric_mean(found_tools.values()))
    return {tool: math.exp(statistics.fmean(math.log(ratio) for ratio in ratios)) for tool, ratios in found.items()}


def known() -> list[dict[str, Any]]:
    """What an earlier run has written."""
    return list(saved("peers").get("workloads", []))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", metavar="target", help="workloads, as autotune takes them")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each tool")
    parser.add_argument("--seconds", type=float, default=30.0, help="of training each config, over all rounds")
    parser.add_argument("--rounds", type=at_least_two, default=3)
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    asked = parser.parse_args(arguments)
    behind = False
    for target in asked.targets:
        compared = compare(target, asked.tools, asked.budget, asked.seconds, asked.rounds)
        print(table(compared), flush=True)
        behind |= any(Ratio.model_validate(row["ours_over_it"]).ci95.high < 1 for row in compared["rows"])
        workloads = [*(one for one in known() if one["target"] != target), compared]
        overall = summary(workloads)
        save("peers", {"ours_over_them": overall, "workloads": workloads})
    print("\n".join(f"  autotune over {tool}: {ratio:.2f} ×" for tool, ratio in overall.items()))
    return int(behind)


if __name__ == "__main__":
    sys.exit(main())
