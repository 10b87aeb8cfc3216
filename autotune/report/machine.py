"""The machine, in the words of `autotune probe`: its table is read cell by cell, so that nothing is worded twice."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from autotune.console_hardware import hardware_table
from autotune.hardware.model import Hardware


def machine_rows(hardware: Hardware) -> list[tuple[str, str]]:
    """Each label with its lines."""
    shown = hardware_table(hardware)
    tables = [part for part in shown.renderables if isinstance(part, Table)] if isinstance(shown, Group) else []
    found: list[tuple[str, str]] = []
    for table in tables:
        labels, lines = (list(column.cells) for column in table.columns)
        for label, line in zip(labels, lines, strict=True):
            if label:
                found.append((str(label), str(line)))
            else:  # goes on with the label above
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{line}")
    return found
