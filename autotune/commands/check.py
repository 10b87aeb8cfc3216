"""`autotune check`: checks whether a result still holds here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import STARTED, Json, Model, Network, Quiet, Seconds, Trust, Writable, reported, say
from autotune.commands.run import Words
from autotune.units import parse_duration


@reported
def check(
    file: Annotated[Path, typer.Argument(help="A result file.")],
    command: Words = None,
    model: Model = "",
    trust: Trust = False,
    budget: Seconds = "50s",
    writable: Writable = None,
    network: Network = False,
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown on stdout, for a comment.")] = False,
    quiet: Quiet = False,
) -> None:
    """Checks whether a result still holds here. Exit status: 0 it holds, 1 it has drifted, 3 it no longer fits."""
    from autotune.results.compare_formats import check_markdown
    from autotune.results.files import to_json
    from autotune.results.result import read_result
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.sessions.checking import STATUS, check_result
    from autotune.sessions.trust import allowing, trained_by
    from autotune.terminal.console import check_lines, make_console
    from autotune.terminal.progress import make_progress

    result = read_result(file)
    named = trained_by(result.workload, file, model=model, command=command or (), trust=trust)
    target = allowing(named, writable or (), any_network=network)
    clock = Budget(parse_duration(budget), started=STARTED)
    console = make_console()
    with Interrupts() as interrupts, make_progress(console, quiet=quiet, seconds=clock.remaining) as progress:
        notes = None if model or command else file  # a workload that the user names is always measured
        record = check_result(result, target, clock, progress, interrupts, file=notes)
    if json:
        say(to_json(record))
    if markdown:
        say(check_markdown(record))
    if not quiet:
        console.print(check_lines(record))
    raise typer.Exit(STATUS[record.verdict])
