"""What does tuning inside a training cost, and what does it gain? The same epochs, untuned and by `autotune train`.

    python -m benchmarks.while_training                       # six loops, ten minutes untuned each: four hours
    python -m benchmarks.while_training waits --minutes 2     # one of them, shorter

Each loop of `benchmarks.while_training_loops` trains for some minutes once, which gives the number of its epochs. Then
it trains as many untuned, under `autotune train`, and under `autotune launch` with what that has found, one after the
other, with nothing beside. Writes benchmarks/output/while_training.json; the exit status is 1 when a goal is missed:
never more than 1.02 of the untuned time, and at most 1.05 of that of `launch`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.hardware import probe_host
from benchmarks.output import save, saved
from benchmarks.while_training_loops import LOOPS

MINUTES = 10.0
MOST_OF_UNTUNED, MOST_OF_LAUNCHED = 1.02, 1.05


def trained(command: Sequence[str], before: Sequence[str] = ()) -> dict[str, Any]:
    """What a training prints in the end.

    Raises:
        CalledProcessError: It failed.
    """
    words = [*before, sys.executable, "-m", "benchmarks.while_training_loops", *command]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(name: str, minutes: float) -> dict[str, Any]:
    """The figures of one loop."""
    autotune = [sys.executable, "-m", "autotune"]
    with tempfile.TemporaryDirectory(prefix="while-training-") as folder:
        result = Path(folder) / "result.json"
        epochs = trained([name, "--seconds", str(60 * minutes)])["epochs"]
        command = [name, "--epochs", str(epochs)]
        untuned = trained(command)
        tuned = trained(command, [*autotune, "train", "--out", str(result), "--"])
        launched = trained(command, [*autotune, "launch", "--no-realised", str(result), "--"])
        events = [json.loads(line) for line in result.with_suffix(".live.jsonl").read_text().splitlines()]
        # A short training ends before its search is over.
        over: dict[str, Any] = next((one for one in reversed(events) if one["event"] in {"over", "ended"}), {})
    return {
        "epochs": epochs,
        "seconds": {"untuned": untuned["seconds"], "tuned": tuned["seconds"], "launched": launched["seconds"]},
        "of_untuned": tuned["seconds"] / untuned["seconds"],
        "of_launched": tuned["seconds"] / launched["seconds"],
        "same_loss": tuned["loss"] == untuned["loss"],
        "won": over.get("won"),
        "gained": over.get("gained"),
        "cost_seconds": over.get("cost_seconds"),
        "why": over.get("why"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and saves each loop; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", nargs="*", metavar="loop", help=f"of {', '.join(LOOPS)}; all when left out")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="that a loop trains untuned")
    options = parser.parse_args(arguments)
    if unknown := set(options.loops) - set(LOOPS):
        parser.error(f"expected some of {', '.join(LOOPS)}, got {', '.join(sorted(unknown))}")
    rows = saved("while_training").get("loops", {})
    for name in options.loops or LOOPS:
        figures = {"machine": probe_host().slug, "minutes": options.minutes, **measure(name, options.minutes)}
        rows = {**rows, name: figures}
        print(f"{name}: {figures['of_untuned']:.3f} of the untuned time (goal ≤ {MOST_OF_UNTUNED}), "
              f"{figures['of_launched']:.3f} of that of launch (goal ≤ {MOST_OF_LAUNCHED}); {figures['won']}, "
              f"the search cost {figures['cost_seconds']} s ({figures['why']})", flush=True)  # fmt: skip
        save("while_training", {"loops": rows})
    missed = [
        one for one in rows.values() if one["of_untuned"] > MOST_OF_UNTUNED or one["of_launched"] > MOST_OF_LAUNCHED
    ]
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
