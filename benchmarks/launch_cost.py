"""What `autotune launch` itself costs a script: as it is, beside the same launched with a result that changes nothing.

    python -m benchmarks.launch_cost        # three minutes on two cores

`benchmarks/wordy.py` is tuned for some seconds, for a result of that script. In it the answer is replaced by what the
script trains with, and as many threads as torch takes by itself: the recorder comes along, watches each step and tells
torch what it knows. Then both train side by side in turns, in some pairs of processes, timed by torch's hook alone
(`benchmarks.script_turns`).

Writes benchmarks/output/launch_cost.json. The exit status is 1 when launching costs a per cent or more beyond doubt.
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

from benchmarks.output import save
from benchmarks.script_turns import CLOCK, Run, compared_in_pairs

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "wordy.py"
GOAL = 0.01
PAIRS, SECONDS, BUDGET = 4, 15.0, "30s"


def without_a_change(folder: Path) -> Path:
    """A result of the script whose answer is what it trains with."""
    out, words = folder / "result.json", [sys.executable, str(SCRIPT)]
    command = [sys.executable, "-m", "autotune", "run", "--budget", BUDGET, "--quiet", "--only", "num_threads"]
    subprocess.run([*command, "--out", str(out), "--", *words], cwd=folder, check=True)
    result: dict[str, Any] = json.loads(out.read_text())
    told = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.get_num_threads())"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    result["best"]["config"] = {**result["baseline"]["config"], "num_threads": int(told.stdout)}
    out.write_text(json.dumps(result))
    return out


def measured(pairs: int, seconds: float) -> dict[str, Any]:
    """The launched script's speed over the script's as it is."""
    words, environment = [sys.executable, str(SCRIPT)], {"PYTHONPATH": f"{CLOCK}:{ROOT}"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        launched = [sys.executable, "-m", "autotune", "launch", str(without_a_change(folder)), "--", *words]

        def pair() -> tuple[Run, Run]:
            plain, tuned = (
                Run(command, folder, environment, "steps", folder / f"{name}.clock")
                for name, command in (("plain", words), ("launched", launched))
            )
            return plain, tuned

        found = compared_in_pairs(pair, pairs, seconds)
    if failed := [one["failed"] for one in (*found["pairs"], found) if "failed" in one]:
        raise SystemExit(failed[0])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of processes")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that each side trains in a pair")
    options = parser.parse_args(arguments)
    figures = measured(options.pairs, options.seconds)
    low, high = figures["ci95"]
    print(f"launched, over as it is: {figures['ratio']:.3f} × ({low:.3f} – {high:.3f})")
    print(f"written to {save('launch_cost', {'script': SCRIPT.stem, 'goal': GOAL, **figures})}")
    return int(high < 1 - GOAL)


if __name__ == "__main__":
    sys.exit(main())
