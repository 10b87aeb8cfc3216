"""The tables of what was measured, from the files that the benchmarks write."""

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
    """What a benchmark wrote."""
    return json.loads((OUTPUT / f"{name}.json").read_text(encoding="utf-8"))


def _change(share: float, low: float, high: float) -> str:
    """A change with its interval."""
    return f"{_percent(share)} ({_percent(low)} – {_percent(high)})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ratio(found: Any) -> str:
    """A ratio with its interval."""
    if found is None:
        return "nothing faster than before"
    low, high = found["ci95"]
    return f"{found['ratio']:.2f} × ({low:.2f} – {high:.2f})"


def _percent(share: float, decimals: int = 1) -> str:
    """A share with its sign."""
    return f"{100 * share:+.{decimals}f} %".replace("-", "−")


def _short(target: str) -> str:
    """``digits`` of ``benchmarks.digits:build``."""
    return target.rpartition(":")[0].rpartition(".")[2]


def guides() -> str:
    """Before, each guide's advice, and what autotune found."""
    rows = []
    for one in read("guides")["guides"]:
        sides = {row["name"]: row for row in one["rows"]}
        guide, tuned = sides["guide"], sides["tuned"]
        ratios = (guide["over_before"], tuned["over_before"], guide["tuned_over_it"], one["claimed"])
        rows.append([GUIDES[one["guide"]], *map(_ratio, ratios)])
    head = ("guide", "its advice, over before", "autotune, over before", "autotune, over the advice", "it had claimed")
    return _table(head, rows)


def replicate() -> str:
    """What was claimed, and what an independent loop found."""
    rows = [
        [one["workload"], _ratio(one["claimed"]) if one["changed_knobs"] else "nothing faster", _ratio(one["realised"])]
        for one in read("replicate")["replications"]
    ]
    return _table(("workload", "claimed", "realised"), rows)


def frameworks() -> str:
    """The same through each framework."""
    rows = [
        [word, _ratio(found["claimed"]), _ratio(found["realised"]), _percent(found["off"])]
        for word, found in framework_loops()
    ]
    return _table(("trained through", "claimed", "realised", "off the claim"), rows)


def framework_loops() -> list[tuple[str, Any]]:
    """What trained each file, and how it went: the independent loop, then frameworks."""
    return [
        (word, found)
        for one in read("replicate_frameworks")["replications"]
        for word, found in [
            (f"independent loop, {one['workload']}", one),
            *((LOOPS[name], found) for name, found in one["frameworks"].items()),
        ]
    ]


def costs() -> str:
    """What autotune itself costs."""
    found = read("import_cost")
    (low, high), cost = found["start"]["ci95"], found["cost"]
    rows = [
        [
            "a training's start, with a result loaded",
            f"{found['start']['seconds']:+.2f} s ({low:+.2f} – {high:+.2f})".replace("-", "−"),
        ],
        ["its loop, beside one written by hand", _ratio(found["rate"])],
        [f"a training of {found['training_seconds']:.0f} s, in all", _change(cost["share"], *cost["ci95"])],
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
    found = read("aa")
    rows = []
    for where, one in {"": found, ", beside a neighbour": found.get("neighbour")}.items():
        if one is None:
            continue
        sides = {"real confirmations": one["real"], "resampled from their pairs": one["simulated"]["rounds as decided"]}
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
    """The largest batch: predicted, and found by bisection."""
    rows = []
    for case in read("memory_model")["cases"]:
        cells = (str(case["predicted"]), str(case["largest"]), _percent(case["error"], 0), str(case["ooms"]))
        rows.append([f"{_short(case['workload'])}, {case['precision']}", *cells])
    return _table(("workload", "predicted", "by bisection", "error", "bursts out of memory"), rows)


def regional() -> str:
    """Seconds to a compiled answer and rates: as a whole, and by blocks."""
    rows = []
    for case in read("regional_compile")["cases"]:
        whole, blocks = (case["medians"][mode]["opening_seconds"] for mode in ("default", "blocks"))
        rates = (case["rate_whole_over_eager"], case["rate_blocks_over_eager"])
        cells = (f"{whole:.1f} s", f"{blocks:.1f} s", f"{case['seconds_blocks_over_whole']:.2f} ×")
        rows.append([case["workload"], *cells, *(f"{rate:.2f} ×" for rate in rates)])
    head = ("workload", "whole", "by blocks", "blocks, over whole", "rate over eager", "by blocks, over eager")
    return _table(head, rows)


def compiled_loss() -> str:
    """What compiling is worth, of the model and of the loss with it."""
    found = read("compiled_loss")
    sides = {"the model, over eager": "model_over_eager", "the loss with it, over eager": "loss_over_eager",
             "the loss with it, over the model": "loss_over_model"}  # fmt: skip
    return _table(("compiled", "rate"), [[title, _ratio(found[side])] for title, side in sides.items()])


def checkpointing() -> str:
    """Memory and rate of batches, without and with blocks that are computed again."""
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
    known = {one: title for one, title in WORKLOADS.items() if one in surfaces}
    names = list(next(iter(surfaces.values()))["strategies"])
    rows = [[name, *(cell(surfaces[one]["strategies"][name]) for one in known)] for name in names]
    return _table(("strategy", *known.values()), rows)


def replay_early() -> str:
    """How good the choice is after the cost of fifteen bursts."""
    return _replayed(lambda found: f"{found['median_after_15_bursts']:.2f}")


def replay_late() -> str:
    """How good the choice is after ten minutes."""
    return _replayed(lambda found: f"{found['fraction']['10']:.2f}")


def replay_seconds() -> str:
    """How long it takes to be good for good."""

    def cell(found: Any) -> str:
        seconds = found["median_seconds_to_95"]
        return f"{seconds:.0f} s" if seconds < REPLAYED_SECONDS else "never"

    return _replayed(cell)


def peers() -> str:
    """Other tools' choices, trained beside autotune's."""
    workloads = read("peers")["workloads"]
    found = [{row["tool"]: row["ours_over_it"] for row in one["rows"]} for one in workloads]
    tools = [tool for tool in dict.fromkeys(tool for one in found for tool in one) if not tool.startswith("autotune")]
    head = (
        "tool",
        *(f"{_short(one['target'])}, {one['budget_seconds']:.0f} s, {_maker(one['machine'])}" for one in workloads),
    )
    rows = [[tool, *(_ratio(one[tool]) if tool in one else "–" for one in found)] for tool in tools]
    return _table(head, rows)


def _maker(machine: str) -> str:
    """Of a machine's processor, by the folder name that its results have."""
    return {"amd": "AMD", "intel": "Intel"}[machine.partition("-")[0]]


def loader() -> str:
    """What was claimed of a loader whose ratio is known."""
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
    """What a data set that is collated once is worth."""
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
    """Where the beginning is cut off, and what that does to the ratio."""
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
    """Scripts that nobody here wrote: changed, claimed, realised by whole runs, and what train-doctor found."""
    head = ("script", "changed", "claimed", "realised by `launch`", "off", "train-doctor 0.2.0")
    return _table(head, map(_script, read("real_scripts")["rows"]))


def _script(row: Any) -> list[str]:
    name, doctor = row["name"].replace("_", " "), _doctored(row.get("doctor"))
    if "refused" in row:
        return [name, f"refused: {row['refused']}", "–", "–", "–", doctor]
    if not row["changed"]:
        return [name, "nothing", "nothing faster", "–", "–", doctor]
    found, changed = row.get("realised", {}), ", ".join(f"`{knob}`" for knob in row["changed"])
    claimed = _ratio({"ratio": row["claimed"], "ci95": row["ci95"]}) if row["claimed"] else "too few pairs"
    if "ratio" not in found:
        return [name, changed, claimed, found.get("failed", "not run"), "–", doctor]
    return [name, changed, claimed, _ratio(found), _percent(row["claimed"] / found["ratio"] - 1), doctor]


def _doctored(found: Any) -> str:
    """What train-doctor proved, in the seconds that it took."""
    if found is None:
        return "not run"
    if found.get("ratio"):
        return f"{found['change']}, {found['ratio']:.2f} ×, {found['seconds']:.0f} s"
    return f"{'no answer' if 'failed' in found else 'nothing'}, {found['seconds']:.0f} s"


def _of(name: str, table: Callable[[Any], str]) -> Callable[[], str]:
    """The table of a file, with its machine; a sentence where the benchmark has not run yet."""

    def text() -> str:
        if not (OUTPUT / f"{name}.json").exists():
            return f"*Not measured yet: `python -m benchmarks.{name}`.*"
        found = read(name)
        return f"{table(found)}\n\nMachine: {found['machine']}."

    return text


def _held_out(found: Any) -> str:
    """What a tuning finds on each workload that the search was not developed on."""
    rows = []
    for name, one in found["workloads"].items():
        last, budgets = one["tunings"][one["last"]], (one["first"], one["last"])
        rows.append([
            name.replace("_", " "), f"{1000 * one['step_seconds']:.0f} ms", str(last["decided"]),
            "yes" if last["compiled"] else "no", f"{100 * last['timed_fraction']:.0f} %",
            *(f"{one['of_best_known'][budget]['ratio']:.2f} after {budget}" for budget in budgets),
        ])  # fmt: skip
    head = (
        "workload", "step", "decided (goal 60, of long steps 25)", "compiled", "in steps (goal 75 %)",
        "of the best known (goal 0.90 in the mean)", "of the best known (goal 0.97)",
    )  # fmt: skip
    return _table(head, rows)


def _held_out_claims(found: Any) -> str:
    """What it claims, what is realised, and how processes differ."""
    rows = []
    for name, one in found["workloads"].items():
        claim, spread, proof = one["claim"], one["process_spread"], one["proof_over_loop"]
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


def _held_out_together(found: Any) -> str:
    """All of them in one, with the goals."""
    rows = [
        [
            one["figure"], one["value"] if isinstance(one["value"], str) else f"{one['value']:.3f}", one["goal"],
            "reached" if one["met"] else "missed",
        ]
        for one in found["together"]
    ]  # fmt: skip
    return _table(("all workloads", "figure", "goal", ""), rows)


def _aa_policy(found: Any) -> str:
    """Whole tunings in which nothing can be faster."""
    rows = []
    for name, where in {"quiet": "quiet", "neighbour": "beside a neighbour"}.items():
        if (one := found.get(name)) is not None:
            low, high = one["ci95"]
            resumed = sum(tuning["resumed"] for tuning in one["tunings"])
            counts = [str(number) for number in (one["repeats"], one["with_rounds_enough"], resumed, one["gains"])]
            rows.append([f"real processes, {where}", *counts, f"{100 * low:.1f} – {100 * high:.1f} %"])
    for one in found.get("made_up", []):
        *_, (_, gains) = one["gains"].items()
        counts = [str(one["searches"]), "", "", str(gains)]
        rows.append([f"made up, processes {100 * one['process_spread']:.0f} % apart", *counts, ""])
    head = (
        "nothing can be faster",
        "tunings",
        "rounds enough",
        "resumed",
        "report a gain",
        "95 % interval of that share",
    )
    return _table(head, rows)


def _host_history(found: Any) -> str:
    """A value's ratio in one host, in two, and in fresh processes."""
    rows = []
    for name, one in found["workloads"].items():
        rows += [[f"{name}, nothing", _ratio(again), "", "", ""] for again in one["again"]]
        for value in one["values"]:
            fresh = [ratio["ratio"] for ratio in value["fresh_processes"]]
            ratios = (_ratio(value["one_host"]), _ratio(value["two_hosts"]), f"{geometric_mean(fresh):.2f} ×")
            rows.append([f"{name}, `{value['value']}`", *ratios, _change_by_chance(value)])
    return _table(("changed", "one host", "two hosts", "fresh processes", "one host, off fresh ones"), rows)


def _change_by_chance(value: Any) -> str:
    """How far one host is off fresh processes, and what chance explains."""
    return f"{_percent(value['difference'])} (± {100 * value['chance']:.1f})"


def _full_memory(found: Any) -> str:
    """How wide intervals are when memory is nearly full."""
    rows = [
        [share, f"{100 * one['width']:.1f} %", str(len(one["ratios"])), "one" if one["one_host"] else "several"]
        for share, one in found["shares"].items()
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
