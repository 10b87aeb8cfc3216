"""`autotune show`: one result in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import Json, reported, say


@reported
def show(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    why: Annotated[
        bool, typer.Option("--why", help="Show every burst with its reason, and why each other knob was not searched.")
    ] = False,
    json: Json = False,
) -> None:
    """Shows one result."""
    from autotune.results.files import to_json
    from autotune.results.result import read_result
    from autotune.terminal.console import make_console, result_table, training_lines, usage_lines
    from autotune.terminal.trials import profile_tables, trials_table

    result = read_result(file)
    if json:
        say(to_json(result))
        return
    console = make_console(stderr=False)
    console.print(trials_table(result) if why else result_table(result))
    console.print(training_lines(result, file))
    console.print(profile_tables(result) if why else usage_lines(result, file))
