"""A fleet's progress as lines: the steps of each machine, and why some brought no result."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.wording import as_text, labelled


def step_line(machine: str, text: str) -> Text:
    """One step of a machine, with the time of day, since fleets run for a long time."""
    return Text.assemble((f"{datetime.now():%H:%M:%S} ", "dim"), labelled(machine, text, "bold"))


def ending_lines(machine: str, reason: str, log: str) -> RenderableType:
    """A machine that brought no result: the last lines of its job, then the reason."""
    last = [as_text(line, "dim") for line in log.rstrip().splitlines()[-8:]]
    return Group(*last, labelled(f"{machine} brought no result", reason, "bold red"))
