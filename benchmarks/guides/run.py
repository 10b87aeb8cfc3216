"""The five guides on this machine: what their readers train with, what they advise, and what autotune finds.

    python -m benchmarks.guides.run                                       # an hour and a half on two cores
    python -m benchmarks.guides.run landmarks_finetune --budget 300 --seconds 60 --rounds 3

For each guide, autotune tunes the guide's own workload; then BEFORE, GUIDE, its variants that train the same thing,
and what autotune found are trained in interleaved rounds in the independent loop of `benchmarks.replicate`. Last,
BEFORE and tuned train over the same number of samples with three seeds each, to compare their loss.

A guide is read as a person on this machine would read it: no more workers than processors, as the guides say; and where
there is no GPU, bf16 for fp16, and without what only a GPU knows. What was dropped is told.

Prints a table and writes benchmarks/output/guides.json, and each tuning's result into results/<machine>/. The exit
status is 1 when a guide's own advice is faster than what autotune found beyond doubt.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.hardware import probe_host
from autotune.knobs.config import TrainConfig
from autotune.knobs.registry import KNOBS, idle_knobs
from autotune.results.result import Result, Side, read_result
from benchmarks.alternate import realise
from benchmarks.fresh import afresh
from benchmarks.guides import GUIDES
from benchmarks.output import save, saved
from benchmarks.ratios import Ratio, paired_ratio
from benchmarks.replicate import at_least_two, device_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
BEFORE, GUIDE, TUNED = "before", "guide", "tuned"
SEEDS = (0, 1, 2)
"""With two, one config was told to be apart from itself: four figures fall into two and two by chance too often."""
LAST_SHARE = 0.25
"""The loss is the mean over this share of the steps, the last of them."""


def as_read_here(config: TrainConfig, cpus: int, device: str) -> tuple[TrainConfig, tuple[str, ...]]:
    """A guide's config as its reader would take it on this machine, and what was dropped from it.

    Args:
        config: As the guide has it, for its own GPU.
        cpus: No more workers than these.
        device: ``cpu`` or ``cuda``.
    """
    changes: dict[str, Any] = {"num_workers": min(config.num_workers, cpus)}
    if device == "cpu":
        changes |= {knob: KNOBS[knob].default for knob in idle_knobs(config, "cpu")}
        if config.precision == "fp16":
            changes["precision"] = "bf16"
        if config.compile_mode == "reduce-overhead":  # its CUDA graphs are what it is chosen for
            changes["compile_mode"] = "default"
    taken = config.replace(**changes)
    dropped = (f"{knob}={was} → {now}" for knob, (was, now) in taken.changes_from(config).items())
    return taken, tuple(dropped)


def sides_of(guide: str, result: Result, cpus: int) -> tuple[dict[str, Side], dict[str, tuple[str, ...]]]:
    """What is trained side by side, and what of each was dropped here."""
    module = importlib.import_module(f"benchmarks.guides.{guide}")
    device = result.constraints.device
    configs: dict[str, TrainConfig] = {BEFORE: module.BEFORE, GUIDE: module.GUIDE}
    configs |= {
        name: config
        for name, config in module.VARIANTS.items()
        if name not in module.VARIANT_PARAMETERS and config.effective_batch == module.BEFORE.effective_batch
    }
    read = {name: as_read_here(config, cpus, device) for name, config in configs.items()}
    sides = {name: Side(config=config, measurement=None) for name, (config, _) in read.items()}
    sides[BEFORE] = Side(config=result.baseline.config, measurement=None)
    sides[TUNED] = Side(config=result.best.config, parameters=result.best.parameters, measurement=None)
    return sides, {name: dropped for name, (_, dropped) in read.items() if dropped and name != BEFORE}


def tune(guide: str, budget_seconds: float, folder: Path) -> Result:
    """Our own command on a guide's workload; its result stays."""
    out = folder / f"guide-{guide.replace('_', '-')}.json"
    command = [sys.executable, "-m", "autotune", "--model", f"benchmarks.guides.{guide}:build"]
    subprocess.run([*command, "--budget", f"{budget_seconds:g}s", "--out", str(out)], cwd=ROOT, check=True)
    out.with_suffix(".journal").unlink(missing_ok=True)
    return read_result(out)


def final_loss(target: str, side_json: str, device: str, samples: int, seed: int) -> float:
    """Trains in this process over so many samples; returns the mean loss of the last quarter of the steps."""
    import torch

    from autotune.workload.target import load_workload
    from benchmarks.plain import Loop, set_process

    side = Side.model_validate_json(side_json)
    torch.manual_seed(seed)
    random.seed(seed)  # of augmentations, where there are no workers
    set_process(side.config, torch.device(device))
    loop = Loop(load_workload(target, side.parameters), side.config, device)
    losses, seen = [], 0
    for count in loop.steps():
        losses.append(float(loop.last_loss))
        seen += count
        if seen >= samples:
            break
    return statistics.fmean(losses[-max(1, round(LAST_SHARE * len(losses))) :])


def converge(target: str, sides: dict[str, Side], device: str, samples: int) -> dict[str, list[float]]:
    """The final loss of each side, by seed, each in a fresh process."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for seed, (name, side) in itertools.product(SEEDS, sides.items()):
        found[name].append(afresh(final_loss, target, side.model_dump_json(), device, samples, seed))
    return found


def alike(losses: dict[str, list[float]]) -> bool:
    """Whether the ranges of both sides' losses, each widened by the larger range, overlap."""
    spread = max(max(values) - min(values) for values in losses.values())
    before, tuned = losses[BEFORE], losses[TUNED]
    return min(tuned) - spread <= max(before) and min(before) - spread <= max(tuned)


def compare(guide: str, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One guide, from tuning to the loss."""
    target = f"benchmarks.guides.{guide}:build"
    result = tune(guide, asked.budget, folder)
    device = device_of(result)
    sides, dropped = sides_of(guide, result, result.hardware.cpu.budget)
    runs = realise(target, sides, device, asked.seconds, asked.rounds)
    rates = {name: [run.samples_per_second for run in done] for name, done in runs.items()}
    both = {name: sides[name] for name in (BEFORE, TUNED)}
    losses = converge(target, both, device, round(asked.seconds * statistics.geometric_mean(rates[BEFORE])))
    return {
        "guide": guide,
        "device": device,
        "claimed": result.speedup.model_dump() if result.speedup is not None else None,
        "numerics": result.numerics.outcome if result.numerics is not None else None,
        "rows": [
            {
                "name": name,
                "changes": {k: now for k, (_, now) in sides[name].config.changes_from(sides[BEFORE].config).items()},
                "parameters": sides[name].parameters,
                "dropped": dropped.get(name, ()),
                "samples_per_second": statistics.geometric_mean(rates[name]),
                "over_before": paired_ratio(rates[BEFORE], rates[name]).model_dump(),
                "tuned_over_it": paired_ratio(rates[name], rates[TUNED]).model_dump(),
                "foreign_cpu_fraction": max(run.foreign_cpu_fraction or 0.0 for run in runs[name]),
            }
            for name in sides
        ],
        "losses": losses,
        "losses_overlap": alike(losses),
    }


def table(compared: dict[str, Any]) -> str:
    """One guide's figures."""
    lines = [f"{compared['guide']} on {compared['device']}"]
    for row in compared["rows"]:
        over, tuned = (Ratio.model_validate(row[key]) for key in ("over_before", "tuned_over_it"))
        changes = " ".join(f"{knob}={now}" for knob, now in row["changes"].items()) or "what its reader trains with"
        lines.append(
            f"  {row['name']:16}{row['samples_per_second']:9.1f} samples/s, {over} of before; tuned is {tuned} of it"
        )
        lines.append(f"  {'':16}{changes}{'; dropped here: ' + ', '.join(row['dropped']) if row['dropped'] else ''}")
    losses = ", ".join(f"{name} {' '.join(f'{x:.3f}' for x in values)}" for name, values in compared["losses"].items())
    lines.append(f"  loss after as many samples: {losses}: {'alike' if compared['losses_overlap'] else 'APART'}")
    return "\n".join(lines)


def overall(all_compared: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Geometric means over the guides: of tuned over the guide's advice, and over what its reader trains with."""
    rows = [{row["name"]: row for row in compared["rows"]} for compared in all_compared]
    return {
        name: statistics.geometric_mean(of[name]["tuned_over_it"]["ratio"] for of in rows) for name in (GUIDE, BEFORE)
    }


def save_all(all_compared: Sequence[dict[str, Any]], asked: argparse.Namespace) -> Path:
    """Writes what is known so far; guides of earlier runs stay."""
    kept = {one["guide"]: one for one in known()}
    for compared in all_compared:
        kept[compared["guide"]] = compared | {
            "budget_seconds": asked.budget, "seconds_each": asked.seconds, "rounds": asked.rounds
        }  # fmt: skip
    return save("guides", {"tuned_over": overall(list(kept.values())), "guides": list(kept.values())})


def known() -> list[dict[str, Any]]:
    """What earlier runs have written."""
    return list(saved("guides").get("guides", []))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("guides", nargs="*", choices=[*GUIDES, []], metavar="guide", help=f"of {', '.join(GUIDES)}")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for autotune, on each guide")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, for each config")
    parser.add_argument("--rounds", type=at_least_two, default=3)
    asked = parser.parse_args(arguments)
    folder = RESULTS / probe_host().slug
    folder.mkdir(parents=True, exist_ok=True)
    done: list[dict[str, Any]] = []
    for guide in asked.guides or GUIDES:
        done.append(compare(guide, asked, folder))
        print(table(done[-1]), flush=True)
        path = save_all(done, asked)
    print(f"tuned over the guides' advice {overall(done)[GUIDE]:.2f} ×, over before {overall(done)[BEFORE]:.2f} ×")
    print(f"written to {path}")
    guides = [next(row for row in one["rows"] if row["name"] == GUIDE) for one in done]
    return int(any(Ratio.model_validate(row["tuned_over_it"]).ci95.high < 1 for row in guides))


if __name__ == "__main__":
    sys.exit(main())
