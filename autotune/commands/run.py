"""`autotune run`: tunes a training script as it is."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.commands import options, shared_options
from autotune.commands.common import STARTED, Json, Quiet, reported, say

Words = Annotated[
    list[str] | None,
    typer.Argument(help="The command that trains, after --.", metavar="-- COMMAND", show_default=False),
]


@reported
def run(
    command: Words = None,
    budget: shared_options.Budget = "10m",
    dollars_per_hour: shared_options.DollarsPerHour = "",
    machine_name: shared_options.MachineName = "",
    device: shared_options.Device = "",
    out: shared_options.Out = None,
    effective_batch: Annotated[
        str, typer.Option(help="'free' tries other batch sizes too, which changes what a step learns.")
    ] = "",
    memory_target: shared_options.MemoryTarget = "0.9",
    utilization_target: shared_options.UtilizationTarget = "0.95",
    pin: shared_options.Pin = None,
    only: shared_options.Only = "",
    allow_numerics: shared_options.AllowNumerics = False,
    max_workers: shared_options.MaxWorkers = "",
    warm_start: shared_options.WarmStart = None,
    sampler: shared_options.Sampler = "bayes",
    seed: shared_options.Seed = "0",
    storage: shared_options.Storage = "",
    resume: shared_options.Resume = False,
    writable: shared_options.Writable = None,
    network: shared_options.Network = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what was seen and what would be changed, and stop.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Change the script in the end as the result says; autotune keep undoes it.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tunes a training script without changing a line of it: autotune run -- python train.py --epochs 90."""
    from autotune.commands.tune import tune_and_tell

    wanted = shared_options.script_options(
        command or (),
        budget=budget,
        dollars_per_hour=dollars_per_hour,
        machine_name=machine_name,
        device=device,
        out=out,
        effective_batch=effective_batch,
        memory_target=memory_target,
        utilization_target=utilization_target,
        pin=pin,
        only=only,
        allow_numerics=allow_numerics,
        max_workers=max_workers,
        warm_start=warm_start,
        sampler=sampler,
        seed=seed,
        storage=storage,
        resume=resume,
        writable=options.parse_writable(writable or ()),
        any_network=network,
    )
    if dry_run:
        _look(wanted, as_json=json, quiet=quiet)
    else:
        raise typer.Exit(tune_and_tell(wanted, as_json=json, quiet=quiet, keeping=keep))


def _look(wanted: options.Options, *, as_json: bool, quiet: bool) -> None:
    """Tells what a look at the script finds."""
    from autotune.commands.tuning import Tuning
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.terminal.console import make_console
    from autotune.terminal.look import look_json, look_lines
    from autotune.terminal.progress import make_progress

    console = make_console()
    budget = Budget(wanted.budget_seconds, started=STARTED)
    with Interrupts() as interrupts, make_progress(console, quiet=quiet, seconds=budget.remaining) as progress:
        seen, space, protects = Tuning(wanted, progress, budget, interrupts).look()
    if as_json:
        say(look_json(seen, space, protects))
    else:
        assert seen is not None  # noqa: S101 - a script was named
        console.print(look_lines(seen, space, protects or ""))
