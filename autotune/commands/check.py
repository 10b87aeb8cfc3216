"""`autotune check`: does a result still hold here?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import STARTED, reported, say
from autotune.units import parse_duration

CHECK_BUDGET = "50s"


@reported
def check(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    model: Annotated[str, typer.Option(help="The workload, where it is not found as the file names it.")] = "",
    trust: Annotated[bool, typer.Option("--trust", help="Run the code that the file names, wherever it lies.")] = False,
    budget: Annotated[str, typer.Option(help="Wall-clock time for everything.")] = CHECK_BUDGET,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")] = False,
) -> None:
    """Does a result still hold here? Exit status: 0 it does, 1 it has drifted, 3 it no longer fits."""
    from autotune.commands.checking import STATUS, check_result
    from autotune.commands.trust import target_of
    from autotune.results.files import to_json
    from autotune.results.result import read_result
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.terminal.console import check_lines, make_console
    from autotune.terminal.progress import make_progress

    result = read_result(file)
    target = target_of(result.workload.target, file, model, trust=trust)
    clock = Budget(parse_duration(budget), started=STARTED)
    console = make_console()
    with Interrupts() as interrupts, make_progress(console, quiet=quiet) as progress:
        found = check_result(result, target, clock, progress, interrupts)
    if json:
        say(to_json(found))
    if not quiet:
        console.print(check_lines(found))
    raise typer.Exit(STATUS[found.verdict])
