"""A fleet's steps as lines: what each machine does, and why some brought nothing."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.wording import as_text, labelled


def step_line(machine: str, text: str) -> Text:
    """One step of a machine, with the time of day: fleets take long."""
    return Text.assemble((f"{datetime.now():%H:%M:%S} ", "dim"), labelled(machine, text, "bold"))


def ending_lines(machine: str, told: str, log: str) -> RenderableType:
    """A machine that brought no result: the last lines of its job, then why."""
    last = [as_text(line, "dim") for line in log.rstrip().splitlines()[-8:]]
    return Group(*last, labelled(f"{machine} brought no result", told, "bold red"))
