"""Shows a committed result as the README's sample: what the command prints now, so that the two cannot differ."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from autotune.results.result import read_result
from autotune.terminal.console import result_table

ROOT = Path(__file__).parents[2]
FILE = "results/intel-xeon-2-cpus/guide-lm-pretrain.json"
WIDTH = 96
"""Characters of a line that a page of the repository shows without scrolling."""
END = "not searched:"
"""A long list of reasons begins here; the sample leaves it out."""


def text() -> str:
    """The terminal's output for the result, up to the knobs that were not searched."""
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    with console.capture() as captured:
        console.print(result_table(read_result(ROOT / FILE)))
    shown = captured.get().partition(f"\n{END}")[0]
    lines = [line.rstrip() for line in (f"$ autotune show {FILE}", *shown.splitlines())]
    return "\n".join(["```text", *lines, "```"])
