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
WORKLOADS = {
    "digits": "digits",
    "landmarks": "landmarks",
    "gates": "overhead-bound network",
    "charlm": "language model",
    "lines": "lines of text",
}
LOOPS = {"lightning": "Lightning", "fabric": "Fabric", "transformers": "transformers", "accelerate": "Accelerate"}
REPLAYED_SECONDS = 600.0


def read(name: str) -> Any:
    """The output file of a benchmark, parsed."""
    return json.loads((OUTPUT / f"{name}.json").read_text(encoding="utf-8"))


def _change(share: float, low: float, high: float) -> str:
    """A change with its interval."""
    return f"{_percent(share)} ({_percent(low)} – {_percent(high)})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ratio(measured: Any) -> str:
    """A ratio with its interval."""
    if measured is None:
        return "nothing faster than before"
    low, high = measured["ci95"]
    return f"{measured['ratio']:.2f} × ({low:.2f} – {high:.2f})"


def _percent(share: float, decimals: int = 1) -> str:
    """A share with its sign."""
    return f"{100 * share:+.{decimals}f} %".replace("-", "−")


def _short(target: str) -> str:
    """``digits`` of ``benchmarks.digits:build``."""
    return target.rpartition(":")[0].rpartition(".")[2]


def guides() -> str:
    """The baseline, each guide's advice, and autotune's answer."""
    rows = []
    for measured in read("guides")["guides"]:
        sides = {row["name"]: row for row in measured["rows"]}
        guide, tuned = sides["guide"], sides["tuned"]
        ratios = (guide["over_before"], tuned["over_before"], guide["tuned_over_it"], measured["claimed"])
        rows.append([GUIDES[measured["guide"]], *map(_ratio, ratios)])
    head = ("guide", "its advice, over before", "autotune, over before", "autotune, over the advice", "it had claimed")
    return _table(head, rows)


def replicate() -> str:
    """The claimed speed-up, and the one that an independent loop measured."""
    rows = [
        [run["workload"], _ratio(run["claimed"]) if run["changed_knobs"] else "nothing faster", _ratio(run["realised"])]
        for run in read("replicate")["replications"]
    ]
    return _table(("workload", "claimed", "realised"), rows)


def frameworks() -> str:
    """The claimed speed-up, and the one that training through each framework realised."""
    rows = [
        [name, _ratio(loop["claimed"]), _ratio(loop["realised"]), _percent(loop["off"])]
        for name, loop in framework_loops()
    ]
    return _table(("trained through", "claimed", "realised", "off the claim"), rows)


def framework_loops() -> list[tuple[str, Any]]:
    """The name and the figures of each loop that trained a result: the independent loop, then the frameworks."""
    return [
        (name, loop)
        for run in read("replicate_frameworks")["replications"]
        for name, loop in [
            (f"independent loop, {run['workload']}", run),
            *((LOOPS[framework], loop) for framework, loop in run["frameworks"].items()),
        ]
    ]


def costs() -> str:
    """What autotune itself costs."""
    imported = read("import_cost")
    (low, high), cost = imported["start"]["ci95"], imported["cost"]
    rows = [
        [
            "a training's start, with a result loaded",
            f"{imported['start']['seconds']:+.2f} s ({low:+.2f} – {high:+.2f})".replace("-", "−"),
        ],
        ["its loop, beside one written by hand", _ratio(imported["rate"])],
        [f"a training of {imported['training_seconds']:.0f} s, in all", _change(cost["share"], *cost["ci95"])],
    ]
    launched = read("launch_cost")
    rows.append(["a script's loop under `autotune launch`, beside the script as it is", _ratio(launched)])
    noted = read("noting_cost")
    low, high = (1e6 * end for end in noted["quartiles"])
    rows.append(
        [
            "noting what a training reaches",
            f"{1e6 * noted['step_seconds']:.2f} µs a step (quartiles {low:.2f} – {high:.2f}), "
            f"{1e3 * noted['note_seconds']:.0f} ms a note",
        ]
    )
    for name, case in read("telemetry_cost")["cases"].items():
        rows.append([f"watching a burst ({name})", _change(case["cost"], case["low"], case["high"])])
    for name, seconds in read("overhead")["seconds"].items():
        rows.append(
            [f"`{name}`" if name.startswith("autotune") else f"starting a {name}", f"{seconds['median']:.2f} s"]
        )
    many = read("many_machines")
    size = f"{many['page_bytes'] / 1e6:.1f} MB of page"
    rows.append(
        [f"comparing {many['machines']:,} results of {many['kinds']} kinds", f"{many['seconds']:.1f} s, {size}"]
    )
    rows += [
        [f"a fleet of two by `{row['engine']}`, over one tuning", f"{row['added_seconds']:+.1f} s"]
        for row in read("fleet_cost")["rows"]
    ]
    return _table(("what", "cost"), rows)


def same() -> str:
    """The baseline against itself."""
    quiet = read("aa")
    rows = []
    for where, runs in {"": quiet, ", beside a neighbour": quiet.get("neighbour")}.items():
        if runs is None:
            continue
        simulated = runs["simulated"]["rounds as decided"]
        sides = {"real confirmations": runs["real"], "resampled from their pairs": simulated}
        for name, side in sides.items():
            counts = [str(side[key]) for key in ("repeats", "no_difference", "faster", "slower")]
            width = f"± {100 * side['median_interval_half_width']:.1f} %"
            rows.append([name + where, *counts, f"{side['median_ratio']:.3f} ×", width])
    head = (
        "baseline against itself",
        "repeats",
        "no difference",
        "faster",
        "slower",
        "median ratio",
        "median interval",
    )
    return _table(head, rows)


def memory() -> str:
    """The largest batch: as predicted, and by bisection."""
    rows = []
    for case in read("memory_model")["cases"]:
        cells = (str(case["predicted"]), str(case["largest"]), _percent(case["error"], 0), str(case["ooms"]))
        rows.append([f"{_short(case['workload'])}, {case['precision']}", *cells])
    return _table(("workload", "predicted", "by bisection", "error", "bursts out of memory"), rows)


def regional() -> str:
    """Seconds until the model is compiled, and rates: compiled as a whole, and by blocks."""
    rows = []
    for case in read("regional_compile")["cases"]:
        whole, blocks = (case["medians"][mode]["opening_seconds"] for mode in ("default", "blocks"))
        rates = (case["rate_whole_over_eager"], case["rate_blocks_over_eager"])
        cells = (f"{whole:.1f} s", f"{blocks:.1f} s", f"{case['seconds_blocks_over_whole']:.2f} ×")
        rows.append([case["workload"], *cells, *(f"{rate:.2f} ×" for rate in rates)])
    head = ("workload", "whole", "by blocks", "blocks, over whole", "rate over eager", "by blocks, over eager")
    return _table(head, rows)


def compiled_loss() -> str:
    """The gain from compiling the model alone, and the loss together with the model."""
    ratios = read("compiled_loss")
    sides = {"the model, over eager": "model_over_eager", "the loss with it, over eager": "loss_over_eager",
             "the loss with it, over the model": "loss_over_model"}  # fmt: skip
    return _table(("compiled", "rate"), [[title, _ratio(ratios[side])] for title, side in sides.items()])


def checkpointing() -> str:
    """Memory and rate by batch size, without and with activation checkpointing."""
    rows = [
        [
            str(row["batch"]), *(f"{row[key] / 2**20:.0f} MiB" for key in ("bytes", "bytes_with")),
            str(row["batch_in_same_memory"]), f"{row['rate_with_over_without']:.2f} ×",
        ]
        for row in read("checkpointing")["rows"]
    ]  # fmt: skip
    head = ("batch", "memory", "memory with it", "batch with it in the same memory", "rate with it, over without")
    return _table(head, rows)


def _replayed(cell: Callable[[Any], str]) -> str:
    surfaces = read("replay")["surfaces"]
    titles = {workload: title for workload, title in WORKLOADS.items() if workload in surfaces}
    names = list(next(iter(surfaces.values()))["strategies"])
    rows = [[name, *(cell(surfaces[workload]["strategies"][name]) for workload in titles)] for name in names]
    return _table(("strategy", *titles.values()), rows)


def replay_early() -> str:
    """Share of the optimum that each strategy has reached after the cost of fifteen bursts."""
    return _replayed(lambda strategy: f"{strategy['median_after_15_bursts']:.2f}")


def replay_late() -> str:
    """Share of the optimum that each strategy has reached after ten minutes."""
    return _replayed(lambda strategy: f"{strategy['fraction']['10']:.2f}")


def replay_seconds() -> str:
    """Seconds until a strategy reaches 95 % of the optimum and stays there."""

    def cell(strategy: Any) -> str:
        seconds = strategy["median_seconds_to_95"]
        return f"{seconds:.0f} s" if seconds < REPLAYED_SECONDS else "never"

    return _replayed(cell)


def peers() -> str:
    """The rate of autotune's choice over that of each other tool's choice, trained side by side."""
    workloads = read("peers")["workloads"]
    ratios = [{row["tool"]: row["ours_over_it"] for row in workload["rows"]} for workload in workloads]
    names = dict.fromkeys(tool for by_tool in ratios for tool in by_tool)
    tools = [tool for tool in names if not tool.startswith("autotune")]
    head = (
        "tool",
        *(
            f"{_short(workload['target'])}, {workload['budget_seconds']:.0f} s, {_maker(workload['machine'])}"
            for workload in workloads
        ),
    )
    rows = [[tool, *(_ratio(by_tool[tool]) if tool in by_tool else "–" for by_tool in ratios)] for tool in tools]
    return _table(head, rows)


def _maker(machine: str) -> str:
    """The maker of a machine's processor, from the name of its results folder."""
    return {"amd": "AMD", "intel": "Intel"}[machine.partition("-")[0]]


def loader() -> str:
    """The claimed gain of loaders whose true gain is known."""
    rows = [
        [
            f"{row['epoch_batches']:,} batches, {row['num_workers']} workers, prefetch {row['prefetch_factor']}",
            _ratio(row["claimed"]),
            f"{row['true']:.2f} ×",
            _percent(row["error"]),
        ]
        for row in read("known_loader")["rows"]
    ]
    return _table(("an epoch", "claimed, over no workers", "true", "error"), rows)


def resident() -> str:
    """The gain from collating a data set once."""
    rows = [
        [
            row["workload"],
            _ratio(row["collated_over_loader"]),
            _ratio(row["claimed"]),
            f"{_ratio(row['collated_over_fastest_loader'])}, {row['fastest_loader']}",
            f"{row['placement_seconds']:.2f} s",
        ]
        for row in read("resident_data")["rows"]
    ]
    head = ("workload", "over no workers", "it had claimed", "over the fastest loader", "collating, once")
    return _table(head, rows)


def warm_up() -> str:
    """Where the warm-up is cut off, and how that changes the ratio."""
    rows = []
    for name, row in read("warm_up")["workloads"].items():
        warm = row["ratio_when_warm"]
        offs = [_percent(row[which] / warm - 1) for which in ("ratio", "ratio_without_cut")]
        rows.append([name, f"{row['cut']} of {row['end']}", f"{max(row['cut_seconds']):.1f} s", f"{warm:.2f} ×", *offs])
    head = ("workload", "blocks cut", "that is after", "ratio when warm", "off, with the cut", "off, without")
    return _table(head, rows)


def peers_together() -> str:
    """The geometric means over the workloads."""
    means = read("peers")["ours_over_them"]
    return _table(("tool", "geometric mean"), [[tool, f"{ratio:.2f} ×"] for tool, ratio in means.items()])


def guides_together() -> str:
    """The geometric means over the guides."""
    means = read("guides")["tuned_over"]
    return _table(("autotune, over", "geometric mean"), [[side, f"{ratio:.2f} ×"] for side, ratio in means.items()])


def scripts() -> str:
    """Scripts by other authors: changed knobs, claimed and realised speed-ups, and train-doctor's answer."""
    head = ("script", "changed", "claimed", "realised by `launch`", "off", "train-doctor 0.2.0")
    return _table(head, map(_script, read("real_scripts")["rows"]))


def _script(row: Any) -> list[str]:
    name, doctor = row["name"].replace("_", " "), _doctored(row.get("doctor"))
    if "refused" in row:
        return [name, f"refused: {row['refused']}", "–", "–", "–", doctor]
    if not row["changed"]:
        return [name, "nothing", "nothing faster", "–", "–", doctor]
    realised, changed = row.get("realised", {}), ", ".join(f"`{knob}`" for knob in row["changed"])
    claimed = _ratio({"ratio": row["claimed"], "ci95": row["ci95"]}) if row["claimed"] else "too few pairs"
    if "ratio" not in realised:
        return [name, changed, claimed, realised.get("failed", "not run"), "–", doctor]
    return [name, changed, claimed, _ratio(realised), _percent(row["claimed"] / realised["ratio"] - 1), doctor]


def _doctored(answer: Any) -> str:
    """train-doctor's answer, and the seconds that it took."""
    if answer is None:
        return "not run"
    if answer.get("ratio"):
        return f"{answer['change']}, {answer['ratio']:.2f} ×, {answer['seconds']:.0f} s"
    return f"{'no answer' if 'failed' in answer else 'nothing'}, {answer['seconds']:.0f} s"


def _of(name: str, table: Callable[[Any], str]) -> Callable[[], str]:
    """Returns the maker of a benchmark's table with its machine, or of a sentence where it has not run yet."""

    def text() -> str:
        if not (OUTPUT / f"{name}.json").exists():
            return f"*Not measured yet: `python -m benchmarks.{name}`.*"
        output = read(name)
        return f"{table(output)}\n\nMachine: {output['machine']}."

    return text


def _held_out(output: Any) -> str:
    """What a tuning reaches on each workload that the search was not developed on."""
    rows = []
    for name, workload in output["workloads"].items():
        last, budgets = workload["tunings"][workload["last"]], (workload["first"], workload["last"])
        rows.append([
            name.replace("_", " "), f"{1000 * workload['step_seconds']:.0f} ms", str(last["decided"]),
            "yes" if last["compiled"] else "no", f"{100 * last['timed_fraction']:.0f} %",
            *(f"{workload['of_best_known'][budget]['ratio']:.2f} after {budget}" for budget in budgets),
        ])  # fmt: skip
    head = (
        "workload", "step", "decided (goal 60, of long steps 25)", "compiled", "in steps (goal 75 %)",
        "of the best known (goal 0.90 in the mean)", "of the best known (goal 0.97)",
    )  # fmt: skip
    return _table(head, rows)


def _held_out_claims(output: Any) -> str:
    """Claimed and realised speed-ups, and how far processes differ."""
    rows = []
    for name, workload in output["workloads"].items():
        claim, spread, proof = workload["claim"], workload["process_spread"], workload["proof_over_loop"]
        covers = {None: "–", True: "yes", False: "no"}[claim["covers"]]
        claimed = "nothing faster" if claim["covers"] is None else _ratio(claim["claimed"])
        rows.append([
            name.replace("_", " "), claimed, _ratio(claim["realised"]), _percent(claim["off"]), covers,
            *(f"{100 * spread[side]:.1f} %" for side in ("baseline", "tuned")),
            *(f"{proof[side]:.3f}" if side in proof else "–" for side in ("baseline", "tuned")),
        ])  # fmt: skip
    head = (
        "workload", "claimed", "realised", "off (goal 5 %)", "covered", "processes, baseline (goal 2 %)", "tuned",
        "proof over loop, baseline (goal within 2 %)", "tuned",
    )  # fmt: skip
    return _table(head, rows)


def _held_out_together(output: Any) -> str:
    """Figures over all held-out workloads, with their goals."""
    rows = [
        [
            row["figure"], row["value"] if isinstance(row["value"], str) else f"{row['value']:.3f}", row["goal"],
            "reached" if row["met"] else "missed",
        ]
        for row in output["together"]
    ]  # fmt: skip
    return _table(("all workloads", "figure", "goal", ""), rows)


def _aa_policy(output: Any) -> str:
    """Whole tunings in which nothing can be faster."""
    rows = []
    for name, where in {"quiet": "quiet", "neighbour": "beside a neighbour"}.items():
        if (runs := output.get(name)) is not None:
            low, high = runs["ci95"]
            resumed = sum(tuning["resumed"] for tuning in runs["tunings"])
            counts = [str(number) for number in (runs["repeats"], runs["with_rounds_enough"], resumed, runs["gains"])]
            rows.append([f"real processes, {where}", *counts, f"{100 * low:.1f} – {100 * high:.1f} %"])
    for surface in output.get("made_up", []):
        *_, (_, gains) = surface["gains"].items()
        counts = [str(surface["searches"]), "", "", str(gains)]
        rows.append([f"made up, processes {100 * surface['process_spread']:.0f} % apart", *counts, ""])
    head = (
        "nothing can be faster",
        "tunings",
        "rounds enough",
        "resumed",
        "report a gain",
        "95 % interval of that share",
    )
    return _table(head, rows)


def _host_history(output: Any) -> str:
    """The ratio of each value in one host, in two hosts, and in fresh processes."""
    rows = []
    for name, workload in output["workloads"].items():
        rows += [[f"{name}, nothing", _ratio(again), "", "", ""] for again in workload["again"]]
        for value in workload["values"]:
            fresh = [ratio["ratio"] for ratio in value["fresh_processes"]]
            ratios = (_ratio(value["one_host"]), _ratio(value["two_hosts"]), f"{geometric_mean(fresh):.2f} ×")
            rows.append([f"{name}, `{value['value']}`", *ratios, _change_by_chance(value)])
    return _table(("changed", "one host", "two hosts", "fresh processes", "one host, off fresh ones"), rows)


def _change_by_chance(value: Any) -> str:
    """The difference between one host and fresh processes, and how much of it chance explains."""
    return f"{_percent(value['difference'])} (± {100 * value['chance']:.1f})"


def _full_memory(output: Any) -> str:
    """The width of intervals when memory is nearly full."""
    rows = [
        [share, f"{100 * runs['width']:.1f} %", str(len(runs["ratios"])), "one" if runs["one_host"] else "several"]
        for share, runs in output["shares"].items()
    ]
    return _table(("of the memory target", "width of a pair's interval, mean", "pairs", "hosts"), rows)


TABLES = {
    "aa-policy": _of("aa_policy", _aa_policy), "full-memory": _of("full_memory", _full_memory),
    "held-out": _of("held_out", _held_out), "held-out-claims": _of("held_out", _held_out_claims),
    "held-out-together": _of("held_out", _held_out_together), "host-history": _of("host_history", _host_history),
    "checkpointing": checkpointing, "compiled-loss": compiled_loss, "regional": regional,
    "costs": costs, "frameworks": frameworks, "guides": guides, "guides-together": guides_together, "loader": loader,
    "memory": memory, "peers": peers, "peers-together": peers_together,
    "replay-early": replay_early, "replay-late": replay_late, "replay-seconds": replay_seconds,
    "replicate": replicate, "resident": resident, "same": same, "scripts": scripts,
    "warm-up": warm_up,
}  # fmt: skip
