"""`autotune report`: one HTML page beside each result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import reported, say


@reported
def report(files: Annotated[list[Path], typer.Argument(help="Result files.")]) -> None:
    """Writes one HTML page beside each result, which opens from disk without a network."""
    from autotune.report import write_report
    from autotune.results.result import read_result
    from autotune.sessions.outputs import PAGE, require_replaceable

    results = [(read_result(file), file) for file in files]  # reads all before it writes any
    for file in files:
        require_replaceable("the report", file.with_suffix(".html"), PAGE)
    for result, file in results:
        say(str(write_report(result, file)))
