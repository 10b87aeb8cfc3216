"""What a fleet adds to the tunings that it runs: seconds beside one tuning typed on the same machine.

    python -m benchmarks.fleet_cost                    # processes and a Ray cluster, four minutes
    python -m benchmarks.fleet_cost --engines slurm    # where Slurm's commands find two free nodes of one CPU

Two kinds of machines at once, each with its own budget, tune `benchmarks.digits`; what is added is the time of
`autotune fleet`, from its start until the results are compared, less that of `autotune --model` with the same budget
just before. The Ray cluster is this machine's: a head, and two nodes of one CPU. How far the two tunings ran at once is
told as the share of the shorter one that lies within the other.

Writes benchmarks/output/fleet_cost.json. The exit status is 1 when the goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune.results.result import Result, read_result
from benchmarks.output import save, saved

GOAL_SECONDS = 20.0
KINDS = ("first", "second")
ROOT = Path(__file__).parents[1]
MODEL = "benchmarks.digits:build"


@contextlib.contextmanager
def fleet_of(engine: str) -> Iterator[str]:
    """A fleet's file, while its machines stand."""
    if engine == "ray":
        from ray.cluster_utils import Cluster

        cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for kind in KINDS:
            cluster.add_node(num_cpus=1, labels={"kind": kind})
        tables = "".join(f'[machines.{kind}]\ncpus = 1\nlabels = {{ kind = "{kind}" }}\n' for kind in KINDS)
        try:
            yield f'engine = "ray"\naddress = "{cluster.address}"\n{tables}'
        finally:
            cluster.shutdown()
    else:
        yield f'engine = "{engine}"\n' + "".join(f"[machines.{kind}]\n" for kind in KINDS)


def seconds_of(*words: str, folder: Path) -> float:
    """What an autotune command takes.

    Raises:
        SystemExit: It failed.
    """
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "autotune", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"autotune {' '.join(words)}: exit status {done.returncode}\n{done.stderr}")
    return time.perf_counter() - began


def at_once(results: Sequence[Result]) -> float:
    """Share of the shorter tuning that lies within the other."""
    spans = [(end - result.search.seconds, end) for result in results for end in [result.created.timestamp()]]
    common = min(end for _, end in spans) - max(begin for begin, _ in spans)
    return max(0.0, common) / min(end - begin for begin, end in spans)


def measured(engine: str, budget: str) -> dict[str, Any]:
    """One engine's fleet beside one tuning."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        left_out = shutil.ignore_patterns("*.json", "__pycache__")
        shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=left_out)
        with fleet_of(engine) as text:
            (folder / "fleet.toml").write_text(text)
            alone = seconds_of("--model", MODEL, "--budget", budget, "--out", "alone.json", folder=folder)
            fleet = seconds_of("fleet", "fleet.toml", "--model", MODEL, "--budget", budget, folder=folder)
        results = [read_result(next((folder / "results" / kind).glob("*.json"))) for kind in KINDS]
    return {
        "engine": engine, "budget": budget, "one_tuning_seconds": alone, "fleet_seconds": fleet,
        "added_seconds": fleet - alone, "at_once": at_once(results),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="local,ray", help="of local, ray and slurm, with commas between")
    parser.add_argument("--budget", default="30s", help="of each tuning")
    options = parser.parse_args(arguments)
    rows = {row["engine"]: row for row in saved("fleet_cost").get("rows", [])}
    for engine in options.engines.split(","):
        rows[engine] = row = measured(engine, options.budget)
        print(
            f"{engine:<6} one tuning {row['one_tuning_seconds']:.1f} s, two as a fleet {row['fleet_seconds']:.1f} s: "
            f"{row['added_seconds']:.1f} s more; {row['at_once']:.0%} at once",
            flush=True,
        )
    print(f"written to {save('fleet_cost', {'goal_seconds': GOAL_SECONDS, 'rows': list(rows.values())})}")
    return int(any(row["added_seconds"] > GOAL_SECONDS for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
