"""Makes the benchmark tables, from the files that the benchmarks write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

OUTPUT = Path(__file__).parents[2] / "benchmarks/output"
GUIDES = {
    "cnn_lstm": "CNN and LSTM",
    "landmarks_finetune": "landmarks, fine-tuning",
    "lm_pretrain": "language model",
    "ctc_tips": "CTC",
    "asl_transformer": "transformer on sequences",
}
LOOPS = {"lightning": "Lightning", "fabric": "Fabric", "transformers": "transformers", "accelerate": "Accelerate"}
REPLAYED_SECONDS = 600.0
VARIANTS = {"loadtune --auto-batch", "Optuna random"}
"""Further ways to run a tool that the table of tools leaves out; the means and the best of them count these, too."""
OUTCOMES = ("of the best known", "reach", "claims", "intervals", "half-width of a claim, median")
"""The figures of the held-out workloads that the page shows: what a user gets. The file holds the others."""
WITHIN = 0.05
"""The goal for a claim: at most 5 % from the realised gain."""
GPU_TARGET, GPU_RESULT = "benchmarks.guides.lm_pretrain:build", "nvidia-h100-80gb-hbm3/guide-lm-pretrain.json"


def read(name: str) -> Any:
    """The output file of a benchmark, parsed."""
    return json.loads((OUTPUT / f"{name}.json").read_text(encoding="utf-8"))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *others = (f"| {' | '.join(line)} |" for line in [head, *rows])
    return "\n".join([first, f"|---{'|---:' * (len(head) - 1)}|", *others])


def _ratio(measured: Any) -> str:
    """A ratio with its interval."""
    if measured is None:
        return "nothing faster than before"
    return f"{measured['ratio']:.2f}× ({_interval(measured)})"


def _interval(measured: Any) -> str:
    low, high = measured["ci95"]
    return f"{low:.2f}–{high:.2f}"


def _percent(share: float, decimals: int = 1) -> str:
    """A share with its sign."""
    return f"{100 * share:+.{decimals}f} %".replace("-", "−")


def _short(target: str) -> str:
    """``digits`` of ``benchmarks.digits:build``."""
    return target.rpartition(":")[0].rpartition(".")[2]


def ten() -> str:
    """The ten figures that a reader wants, each with its spread and the command that makes it."""
    scripts = _realised()
    offs = [_off(row) for row in scripts]
    guided = [{row["name"]: row for row in guide["rows"]}["guide"] for guide in read("guides")["guides"]]
    best = [min(_others(workload).values()) for workload in read("peers")["workloads"]]
    real = [runs["real"] for runs in _same().values()]
    drawn = [runs["simulated"]["rounds as decided"] for runs in _same().values()]
    gpu = json.loads((OUTPUT.parents[1] / "results" / GPU_RESULT).read_text(encoding="utf-8"))["speedup"]
    live = [loop["of_untuned"] for loop in read("while_training")["loops"].values()]
    cost, files = read("import_cost")["cost"], read("your_files")
    hostile, kills = [*files["adversary"].values()], [files["kills"], files["kills_after_review"]]
    rows = [
        ("gain of [unchanged scripts by other authors](#scripts-by-other-authors)",
         *_mean([row["realised"]["ratio"] for row in scripts]), "python -m benchmarks.real_scripts SOURCES"),
        ("their claims within 5 % of the realised gain",
         f"{sum(abs(off) <= WITHIN for off in offs)} of {len(offs)}",
         f"off by {_percent(min(offs))} to {_percent(max(offs))}", "python -m benchmarks.real_scripts SOURCES"),
        ("gain over the advice of [five tuning guides](#five-tuning-guides)",
         *_mean([guide["tuned_over_it"]["ratio"] for guide in guided]), "python -m benchmarks.guides.run"),
        ("rate over that of the best [other tool](#is-it-better-than-other-tools)", *_mean(best),
         "python -m benchmarks.peers.run TARGET"),
        ("[false gains](#does-it-claim-what-is-not-there), a config against itself",
         _share(real, "faster", "repeats"), f"resampled: {_share(drawn, 'faster', 'repeats')}",
         "python -m benchmarks.aa"),
        ("gain [on a GPU](#on-a-gpu), one model on one H100",
         f"{gpu['ratio']:.2f}×", f"{_interval(gpu)}, one run", f"autotune --model {GPU_TARGET} --budget 5m"),
        ("time of a short training [tuned while it runs](#tuning-while-training), of the untuned",
         *_mean(live), 'python -m benchmarks.while_training waits computes "is small" --minutes 1.5'),
        ("search until 95 % of the best [recorded config](#searches-replayed)",
         _to_95("autotune"), f"Optuna TPE: {_to_95('Optuna TPE')}", "python -m benchmarks.replay"),
        ("[cost](#what-autotune-costs) to a training of ten minutes",
         _percent(cost["share"]), " to ".join(map(_percent, cost["ci95"])), "python -m benchmarks.import_cost"),
        ("[your files](#what-keeping-your-files-costs), changed by hostile commands",
         _share(hostile, "changed", "cases"),
         f"lost in kills: {sum(len(part['lost']) for part in kills)} of {sum(part['kills'] for part in kills)}",
         "python -m benchmarks.your_files"),
    ]  # fmt: skip
    return _table(
        ("figure", "measured", "spread", "command"),
        [(figure, measured, spread, f"`{command}`") for figure, measured, spread, command in rows],
    )


def _mean(ratios: Sequence[float]) -> tuple[str, str]:
    """The geometric mean of ratios, and how far they reach."""
    return f"{geometric_mean(ratios):.2f}×", f"{min(ratios):.2f}–{max(ratios):.2f} over {len(ratios)}"


def _share(rows: Iterable[Any], happened: str, total: str) -> str:
    """How often something has happened, of how many times, over several rows."""
    counts = [(row[happened], row[total]) for row in rows]
    return f"{sum(times for times, _ in counts)} of {sum(all_ for _, all_ in counts):,}"


def _to_95(strategy: str) -> str:
    """The seconds until a strategy stays above 95 % of the optimum, over the recorded surfaces."""
    medians = [
        surface["strategies"][strategy]["median_seconds_to_95"] for surface in read("replay")["surfaces"].values()
    ]
    return f"{min(medians):.0f}–{max(medians):.0f} s"


def _realised() -> list[Any]:
    """The scripts by other authors that were launched with their result."""
    return [row for row in read("real_scripts")["rows"] if "ratio" in row.get("realised", {})]


def _off(row: Any) -> float:
    """How far the claim of a script is above what `launch` realised."""
    return float(row["claimed"] / row["realised"]["ratio"] - 1)


def _others(workload: Any) -> dict[str, float]:
    """The rate of autotune's choice over that of each other tool's."""
    return {
        row["tool"]: row["ours_over_it"]["ratio"] for row in workload["rows"] if not row["tool"].startswith("autotune")
    }


def scripts() -> str:
    """Scripts by other authors: changed knobs, claimed and realised speed-ups."""
    rows = []
    for row in read("real_scripts")["rows"]:
        name, realised = row["name"].replace("_", " "), row.get("realised", {})
        claimed = _ratio({"ratio": row["claimed"], "ci95": row["ci95"]}) if row["changed"] else "nothing faster"
        came = [_ratio(realised), _percent(_off(row))] if "ratio" in realised else ["–", "–"]
        rows.append([name, claimed, *came])
    return _table(("script", "claimed", "realised by `launch`", "off"), rows)


def guides() -> str:
    """The baseline, each guide's advice, and autotune's answer."""
    rows = []
    for measured in read("guides")["guides"]:
        sides = {row["name"]: row for row in measured["rows"]}
        guide, tuned = sides["guide"], sides["tuned"]
        ratios = (guide["over_before"], tuned["over_before"], guide["tuned_over_it"], measured["claimed"])
        rows.append([GUIDES[measured["guide"]], *map(_ratio, ratios)])
    means = read("guides")["tuned_over"]
    rows.append(["geometric mean", "", f"{means['before']:.2f}×", f"{means['guide']:.2f}×", ""])
    head = ("guide", "its advice, over before", "autotune, over before", "autotune, over the advice", "it had claimed")
    return _table(head, rows)


def peers() -> str:
    """The rate of autotune's choice over that of each other tool's choice, trained side by side."""
    output = read("peers")
    workloads = output["workloads"]
    by_tool = [{row["tool"]: row for row in workload["rows"]} for workload in workloads]
    head = ("tool", *(f"{_short(workload['target'])}, {_maker(workload['machine'])}" for workload in workloads), "mean")
    rows = [
        [tool, *(_against(by[tool]) for by in by_tool), f"{output['ours_over_them'][tool]:.2f}×"]
        for tool in _others(workloads[0])
        if tool not in VARIANTS
    ]
    return _table(head, rows)


def _against(row: Any) -> str:
    """The rate over that of a tool's choice; nothing but words where the tool changed nothing."""
    if not row["changes"] and row["tool"] != "baseline":
        return "not run" if row["trouble"] else "kept the baseline"
    return _ratio(row["ours_over_it"])


def replay_seconds() -> str:
    """Seconds until a strategy reaches 95 % of the optimum and stays there."""
    surfaces = read("replay")["surfaces"]
    rows = []
    for name in next(iter(surfaces.values()))["strategies"]:
        medians = [surfaces[workload]["strategies"][name]["median_seconds_to_95"] for workload in surfaces]
        if min(medians) >= REPLAYED_SECONDS:
            continue  # it never gets there
        rows.append([name, *(f"{median:.0f} s" if median < REPLAYED_SECONDS else "never" for median in medians)])
    return _table(("strategy", *surfaces), rows)


def replicate() -> str:
    """Claimed and realised speed-ups: of each workload in the independent loop, and of one through each framework."""
    rows = []
    outputs = [read("replicate"), read("replicate_frameworks")]
    for run, maker in [(run, _maker(output["machine"])) for output in outputs for run in output["replications"]]:
        sides = {f"{run['workload']}, {maker}": run} | {
            f"through {LOOPS[name]}": loop for name, loop in run.get("frameworks", {}).items()
        }
        for name, side in sides.items():
            realised = side["realised"]
            if run["changed_knobs"]:
                off = _percent(run["claimed"]["ratio"] / realised["ratio"] - 1)
                rows.append([name, _ratio(run["claimed"]), _ratio(realised), off])
            else:
                rows.append([name, "nothing faster", _ratio(realised), "–"])
    return _table(("workload", "claimed", "realised", "off"), rows)


def costs() -> str:
    """What autotune itself costs."""
    imported, noted, many = read("import_cost"), read("noting_cost"), read("many_machines")
    (low, high), (first, third) = imported["start"]["ci95"], (1e6 * end for end in noted["quartiles"])
    seconds = {name: f"{taken['median']:.2f} s" for name, taken in read("overhead")["seconds"].items()}
    rows = [
        ["a training's start, with a result loaded",
         f"{imported['start']['seconds']:+.2f} s ({low:+.2f} to {high:+.2f})"],
        ["rate of its loop, over one written by hand", _ratio(imported["rate"])],
        ["rate of a script under `autotune launch`, over the script as it is", _ratio(read("launch_cost"))],
        ["noting what a training reaches",
         f"{1e6 * noted['step_seconds']:.2f} µs a step (quartiles {first:.2f}–{third:.2f})"],
        ["watching a burst, three cases", _watching([*read("telemetry_cost")["cases"].values()])],
        ["`autotune --help`", seconds["autotune --help"]],
        [f"comparing {many['machines']:,} results", f"{many['seconds']:.1f} s"],
        ["a fleet of two, over one tuning",
         ", ".join(f"{row['added_seconds']:+.1f} s (`{row['engine']}`)" for row in read("fleet_cost")["rows"])],
    ]  # fmt: skip
    return _table(("what", "cost"), [[what, cost.replace("-", "−")] for what, cost in rows])


def _watching(cases: Sequence[Any]) -> str:
    """The range of the costs of watching, and the ends of all their intervals."""
    costs, low, high = (
        [case["cost"] for case in cases],
        [case["low"] for case in cases],
        [case["high"] for case in cases],
    )
    return f"{_percent(min(costs))} to {_percent(max(costs))} ({_percent(min(low))} to {_percent(max(high))})"


def _same() -> dict[str, Any]:
    """The confirmations of a baseline against itself: on a quiet machine, and beside a neighbour."""
    quiet = read("aa")
    return {"": quiet, ", beside a neighbour": quiet["neighbour"]}


def same() -> str:
    """The baseline against itself."""
    rows = []
    for where, runs in _same().items():
        simulated = runs["simulated"]["rounds as decided"]
        sides = {"real": runs["real"], "resampled": simulated}
        for name, side in sides.items():
            counts = [str(side[key]) for key in ("repeats", "no_difference", "faster", "slower")]
            width = f"± {100 * side['median_interval_half_width']:.1f} %"
            rows.append([name + where, *counts, f"{side['median_ratio']:.3f}×", width])
    head = ("a baseline against itself", "repeats", "alike", "faster", "slower", "median", "interval")
    return _table(head, rows)


def _maker(machine: str) -> str:
    """The maker of a machine's processor, from the name of its results folder."""
    return {"amd": "AMD", "intel": "Intel"}[machine.partition("-")[0]]


def _of(name: str, table: Callable[[Any], str]) -> Callable[[], str]:
    """Returns the maker of a benchmark's table with its machine, or of a sentence where it has not run yet."""

    def text() -> str:
        if not (OUTPUT / f"{name}.json").exists():
            return f"*Not measured yet: `python -m benchmarks.{name}`.*"
        output = read(name)
        return f"{table(output)}\n\nMachine: {output['machine']}."

    return text


def _held_out_together(output: Any) -> str:
    """Figures over all held-out workloads, with their goals."""
    rows = output["together"]
    shown = [row for row in rows if row["figure"].startswith(OUTCOMES)]
    values = [row["value"] if isinstance(row["value"], str) else f"{row['value']:.2f}" for row in shown]
    lines = [f"- {row['figure']}: {value} (goal {row['goal']})" for row, value in zip(shown, values, strict=True)]
    return "\n".join([*lines, f"- goals reached: {sum(row['met'] for row in rows)} of {len(rows)}"])


TABLES = {
    "costs": costs, "guides": guides, "held-out-together": _of("held_out", _held_out_together), "peers": peers,
    "replay-seconds": replay_seconds, "replicate": replicate, "same": same, "scripts": scripts, "ten": ten,
}  # fmt: skip
