"""The tables of what was measured, from the files that the benchmarks write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
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
    (one,) = read("replicate_frameworks")["replications"]
    loops = {"independent loop": one} | {word: one["frameworks"][name] for name, word in LOOPS.items()}
    rows = [[word, _ratio(found["realised"]), _percent(found["off"])] for word, found in loops.items()]
    return _table(("trained through", f"realised; claimed {_ratio(one['claimed'])}", "off the claim"), rows)


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


TABLES = {
    "checkpointing": checkpointing, "compiled-loss": compiled_loss, "regional": regional,
    "costs": costs, "frameworks": frameworks, "guides": guides, "guides-together": guides_together, "loader": loader,
    "memory": memory, "peers": peers, "peers-together": peers_together,
    "replay-early": replay_early, "replay-late": replay_late, "replay-seconds": replay_seconds,
    "replicate": replicate, "resident": resident, "same": same, "scripts": scripts,
    "warm-up": warm_up,
}  # fmt: skip
