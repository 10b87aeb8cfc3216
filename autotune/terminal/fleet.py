"""A fleet's steps as lines: what each machine does, and why some brought nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.wording import as_text, labelled


class Ended(Protocol):
    """What became of a machine."""

    @property
    def machine(self) -> str: ...  # noqa: D102
    @property
    def told(self) -> str: ...  # noqa: D102
    @property
    def log(self) -> str: ...  # noqa: D102


def step_line(machine: str, text: str) -> Text:
    """One step of a machine, with the time of day: fleets take long."""
    return Text.assemble((f"{datetime.now():%H:%M:%S} ", "dim"), labelled(machine, text, "bold"))


def ending_lines(failed: Iterable[Ended]) -> RenderableType:
    """The machines that brought no result: the last lines of each, then why."""
    parts: list[Text] = []
    for ending in failed:
        parts += [as_text(line, "dim") for line in ending.log.rstrip().splitlines()[-8:]]
        parts.append(labelled(f"{ending.machine} brought no result", ending.told, "bold red"))
    return Group(*parts)
