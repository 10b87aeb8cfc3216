"""What `autotune probe` prints: one machine, and what could not be read of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.hardware import Hardware, hardware_rows
from autotune.wording import as_text

if TYPE_CHECKING:
    from rich.console import RenderableType


def hardware_table(hardware: Hardware) -> RenderableType:
    """One machine: what it has, what it can reach, and what could not be read."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for label, lines in hardware_rows(hardware):
        for number, line in enumerate(lines):
            grid.add_row("" if number else label, as_text(line))
    return Group(Text.assemble(as_text(hardware.hostname, "bold"), "\n"), grid)
