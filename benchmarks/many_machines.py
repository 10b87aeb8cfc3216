"""A fleet of a thousand machines of twenty kinds: what comparing their results takes, and how large its page is.

    python -m benchmarks.many_machines

The results are this repository's own, given other machines, prices and rates; scheduling is the engine's part, and is
not simulated. Goals: 5 seconds, and a page of 2 MB. Writes benchmarks/output/many_machines.json; the exit status is 1
when a goal is missed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from autotune.report.comparison import render_comparison
from autotune.results.compare import compare
from autotune.results.files import write_document
from autotune.results.gather import gather
from autotune.results.result import Result, read_result
from benchmarks.output import save

MACHINES, KINDS = 1000, 20
GOAL_SECONDS, GOAL_BYTES = 5.0, 2e6
SAMPLES = 90_000_000
RESULT = Path(__file__).parents[1] / "results" / "intel-xeon-2-cpus" / "benchmarks-digits-build.json"


def machine(source: Result, number: int, rng: random.Random) -> Result:
    """One of the thousand: a host of its own, of one of the kinds."""
    kind = number % KINDS
    factor = (1 + kind) * rng.gauss(1, 0.02)
    measured = source.best.measurement
    assert measured is not None
    blocks = tuple(block.model_copy(update={"seconds": block.seconds / factor}) for block in measured.blocks)
    best = source.best.model_copy(update={"measurement": measured.model_copy(update={"blocks": blocks})})
    return source.model_copy(
        update={
            "hardware": source.hardware.model_copy(update={"hostname": f"node-{number}"}),
            "machine_name": f"kind-{kind}",
            "dollars_per_hour": 0.1 * (1 + kind) ** 1.2,
            "created": source.created + timedelta(seconds=number),
            "best": best,
        }
    )


def main() -> int:
    """Entry; returns the exit status."""
    rng = random.Random(0)
    source = read_result(RESULT)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(MACHINES):
            write_document(machine(source, number, rng), Path(folder, f"{number}.json"))
        began = time.perf_counter()
        gathered = gather([folder])
        read = time.perf_counter() - began
        page = render_comparison(compare(gathered, SAMPLES))
    seconds = time.perf_counter() - began
    figures = {
        "machines": MACHINES, "kinds": KINDS, "seconds": seconds, "of_which_reading": read,
        "page_bytes": len(page.encode()), "goal_seconds": GOAL_SECONDS, "goal_bytes": GOAL_BYTES,
    }  # fmt: skip
    print(f"{MACHINES} results: {seconds:.1f} s, of which {read:.1f} s reading; the page has {len(page) / 1e6:.2f} MB")
    print(f"written to {save('many_machines', figures)}")
    return int(seconds > GOAL_SECONDS or figures["page_bytes"] > GOAL_BYTES)


if __name__ == "__main__":
    sys.exit(main())
