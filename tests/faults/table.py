"""Makes README.md: the table of all faults and of how each must end, from the tests themselves.

``python -m tests.faults.table`` writes it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.faults.scenarios import IMPORTING, PLAYERS, SCENARIOS, STAGES

README = Path(__file__).parent / "README.md"
MODULES = ("test_bursts", "test_players", "test_imports", "test_commands", "test_storage")
TITLES = {
    "memory": "Memory that runs out",
    "ends": "Processes that end",
    "raising": "Exceptions and numbers",
    "hangs": "Hangs",
    "leaving": "What a burst leaves behind",
    "meddling": "What user code changes under a burst",
    "compiling": "Compiling",
    "ranks": "Several ranks",
}
HEAD = """# Faults

What is done to autotune on purpose, in real processes, and how each must end.
Made from the tests by `python -m tests.faults.table`; a test holds it up to date.

After each, nothing is left: no process, no segment of shared memory, no semaphore, no temporary file; the result
file is valid, or rightly absent; after a fault in a burst the next burst is well; a deadline or a budget is overrun
by 5 s at most, and by an import of torch.

{count} scenarios.
"""


class Row(NamedTuple):
    """One fault.

    Attributes:
        what: What happens.
        ends: How it must end.
        test: Where it is tested.
    """

    what: str
    ends: str
    test: str


def sections() -> dict[str, list[Row]]:
    """All faults, by what they are about."""
    found: dict[str, list[Row]] = {}
    for module, scenarios in groupby(SCENARIOS, key=lambda scenario: scenario.module):
        found[TITLES[module]] = [Row(one.what, one.ends, f"test_bursts [{one.where}]") for one in scenarios]
    found["Players that share a process"] = [Row(one.what, one.ends, f"test_players [{one.where}]") for one in PLAYERS]
    found["Imports"] = [Row(one.what, one.ends, f"test_imports [{one.module}]") for one in IMPORTING]
    found["Signals to the command"] = [
        Row(f"{stage.signal.name} while {stage.what}", stage.ends, f"test_commands [{stage.name or 'writing'}]")
        for stage in STAGES
    ]
    for module in MODULES:
        for section, row in marked_tests(module):
            found.setdefault(section, []).append(row)
    return found


def marked_tests(module: str) -> Iterator[tuple[str, Row]]:
    """The faults of a module's tests that are not rows of a table there, each with its section."""
    for name, test in inspect.getmembers(importlib.import_module(f"tests.faults.{module}"), inspect.isfunction):
        for section, what, ends in getattr(test, "faults", []):
            yield section, Row(what, ends, f"{module}::{name}")


def markdown() -> str:
    """The whole page."""
    found = sections()
    lines = [HEAD.format(count=sum(len(rows) for rows in found.values())).rstrip()]
    for title, rows in found.items():
        lines += ["", f"## {title}", "", "| what happens | how it ends | test |", "|---|---|---|"]
        lines += [f"| {_cell(row.what)} | {_cell(row.ends)} | `{row.test}` |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("__getitem__", "`__getitem__`")


if __name__ == "__main__":
    README.write_text(markdown(), encoding="utf-8")
