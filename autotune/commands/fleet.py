"""`autotune fleet`: the same tuning on several kinds of machine, and where to train then."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands import options, shared_options
from autotune.commands.common import Quiet, collection_paused, reported
from autotune.errors import INTERRUPTED_STATUS


@reported
def fleet(
    file: Annotated[Path, typer.Argument(help="Which machines there are.")],
    others: Annotated[
        list[str] | None,
        typer.Argument(
            help="Options of autotune for all machines, or the command of a script.",
            metavar="[-- OPTIONS | -- COMMAND]",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="What to tune: module:build or file.py:build.", metavar="TARGET")] = "",
    budget: shared_options.Budget = "10m",
    engine: Annotated[str, typer.Option(help="ray, slurm or local; the file's when left out.")] = "",
    address: Annotated[str, typer.Option(help="Of a Ray cluster; the file's when left out.")] = "",
    out: Annotated[Path, typer.Option(help="The folder for results, one for each machine in it.")] = Path("results"),
    cross: Annotated[
        bool, typer.Option("--cross", help="Then measure each machine's config on all the others.")
    ] = False,
    samples: Annotated[str, typer.Option(help="Of a whole training: what it takes and costs on each machine.")] = "",
    at_least: shared_options.MachinesAtLeast = "",
    quiet: Quiet = False,
) -> None:
    """Tunes on all machines of a fleet at once, brings the results home, and compares them.

    The working directory is what the machines work in: Ray sends it there, Slurm's nodes share it.
    """
    from autotune.commands.fleet_run import FleetRun, Wanted
    from autotune.fleet import read_plan
    from autotune.report.comparison import render_comparison
    from autotune.search.interrupts import Interrupts
    from autotune.terminal.comparison import comparison_table
    from autotune.terminal.console import make_console
    from autotune.terminal.fleet import ending_lines, step_line

    wanted = Wanted.of(
        read_plan(file, engine=engine, address=address), out, model=model, budget=budget, others=tuple(others or ())
    )
    whole, floor = options.parse_samples(samples), options.parse_floor(at_least)
    console = make_console()
    tell = (lambda _machine, _text: None) if quiet else (lambda *step: console.print(step_line(*step)))
    with Interrupts() as interrupts, FleetRun(wanted, tell, interrupts) as run:
        endings = run.tune()
        if cross and not run.interrupted:
            endings += run.cross()
        with collection_paused():
            comparison = run.comparison(whole, floor)
            page = run.write_page(render_comparison(comparison)) if comparison.groups else ""
        if page and not quiet:
            console.print(comparison_table(comparison))
            console.print(page, markup=False)
        failed = [ending for ending in endings if ending.fate != "done"]
        for ending in failed:
            console.print(ending_lines(ending.machine, ending.told, ending.log))
    raise typer.Exit(INTERRUPTED_STATUS if run.interrupted else 1 if failed else 0)
