"""`autotune show`: one result in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import reported, say


@reported
def show(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    why: Annotated[bool, typer.Option("--why", help="Show every burst, and the reason for which it was run.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Shows one result."""
    from autotune.results.files import to_json
    from autotune.results.result import read_result

    result = read_result(file)
    if json:
        say(to_json(result))
        return
    from autotune.terminal.console import make_console, result_table, usage_lines

    console = make_console()
    if why:
        from autotune.terminal.trials import profile_tables, trials_table

        console.print(trials_table(result))
        console.print(profile_tables(result))
        return
    console.print(result_table(result))
    console.print(usage_lines(file))
