"""Where steps and samples spend their time, before and after: what `show --why` prints beside the bursts."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from autotune.results.result import Result
from autotune.results.summary import operators, sample_parts
from autotune.wording import as_text


def profile_tables(result: Result) -> RenderableType:
    """The slowest operators and what reading a sample takes; nothing where no profile was taken."""
    if result.diagnosis.before is None and result.diagnosis.after is None:
        return Group()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", overflow="fold")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for row in operators(result):
        table.add_row(*map(as_text, row))
    parts: list[RenderableType] = ["", as_text("operators, time a sample", "bold"), table]
    if rows := sample_parts(result):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for number, (name, where, time) in enumerate(rows):
            table.add_row(as_text(f"  {name} ({where})" if number else name), as_text(time))
        parts += ["", table]
    return Group(*parts)
