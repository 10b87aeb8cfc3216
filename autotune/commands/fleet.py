"""`autotune fleet`: the same tuning on several kinds of machine, and which one to train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from autotune.commands.common import AtLeast, Quiet, Samples, Seconds, Target, reported
from autotune.commands.run import run
from autotune.commands.tune import tune
from autotune.errors import INTERRUPTED_STATUS, UsageError
from autotune.sessions import options
from autotune.sessions.options import OFFERED, Options


@reported
def fleet(
    file: Annotated[Path, typer.Argument(help="The fleet file, which lists the machines.")],
    others: Annotated[
        list[str] | None,
        typer.Argument(
            help="Options of autotune for all machines, or the command of a script.",
            metavar="[-- OPTIONS | -- COMMAND]",
            show_default=False,
        ),
    ] = None,
    model: Target = "",
    budget: Seconds = "10m",
    engine: Annotated[str, typer.Option(help="Default: the file's.", metavar="ray|slurm|local")] = "",
    address: Annotated[str, typer.Option(help="Address of a Ray cluster. Default: the file's.")] = "",
    folder: Annotated[Path, typer.Option(help="The folder for results, one for each machine in it.")] = Path("results"),
    cross: Annotated[
        bool, typer.Option("--cross", help="Then measure each machine's config on all the others.")
    ] = False,
    samples: Samples = "",
    at_least: AtLeast = "",
    quiet: Quiet = False,
) -> None:
    """Tunes on all machines of a fleet at once, brings the results home, and compares them.

    All machines use the working directory: Ray sends it to them, and Slurm's nodes share it.
    """
    from autotune.fleet import read_plan
    from autotune.report.comparison import render_comparison
    from autotune.search.interrupts import Interrupts
    from autotune.sessions.fleet_run import FleetRequest, FleetRun
    from autotune.terminal.comparison import comparison_table
    from autotune.terminal.console import ending_lines, make_console, step_line

    plan = read_plan(file, engine=engine, address=address)
    request = FleetRequest.of(plan, folder, require_understood, model=model, budget=budget, others=tuple(others or ()))
    whole = options.read(options.Samples, "samples", samples)
    floor = options.read(options.Share, "at_least", at_least)
    console = make_console()
    report = (lambda _machine, _text: None) if quiet else (lambda *step: console.print(step_line(*step)))
    with Interrupts() as interrupts, FleetRun(request, report, interrupts) as run:
        endings = run.tune()
        if cross and not run.interrupted:
            endings += run.cross()
        comparison = run.comparison(whole, floor)
        page = run.write_page(render_comparison(comparison)) if comparison.groups else ""
        if page and not quiet:
            console.print(comparison_table(comparison))
            console.print(page, markup=False, soft_wrap=True)
        failed = [ending for ending in endings if ending.fate != "done"]
        for ending in failed:
            console.print(ending_lines(f"{ending.machine} {ending.outcome}", ending.message, ending.log))
    raise typer.Exit(INTERRUPTED_STATUS if run.interrupted else 1 if failed else 0)


PATHS = {"writable"}
"""Options that name files of the machine, which this one may not have."""
_REFUSED: Any = typer.BadParameter.__base__
"""Base of click's usage errors. Some versions of typer include click, and others depend on it."""


def require_understood(machine: str, words: Sequence[str]) -> None:
    """Refuses a command line that the machine would refuse; paths are not checked, since they are the machine's.

    Args:
        machine: Its name in the fleet's file.
        words: Its command line, after ``autotune``.

    Raises:
        UsageError: An option is unknown or invalid.
    """
    command, rest = (run, words[1:]) if words[:1] == ("run",) else (tune, words)
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_interspersed_args": command is not run})(command)
    try:
        typed = get_command(app).make_context("autotune", list(rest)).params
    except _REFUSED as error:
        raise UsageError(f"the options of {machine}: {error.format_message()}") from None
    try:
        given = {name: typed[name] for name in OFFERED.keys() & typed.keys() - PATHS}
        Options.parse(given, target="", script=tuple(typed.get("command") or ()))
    except UsageError as error:
        raise UsageError(f"the options of {machine}: {error}") from None
