"""`autotune run`: tunes a training script without changing it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autotune.commands.common import STARTED, Json, Quiet, reported, say
from autotune.commands.options import FOR_MODELS, Options, offering

Words = Annotated[
    list[str] | None,
    typer.Argument(help="The command that trains, after --.", metavar="-- COMMAND", show_default=False),
]


@reported
@offering(without=FOR_MODELS | {"effective_batch"})
def run(
    command: Words = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what was seen and what would be tried, and exit.")
    ] = False,
    patch: Annotated[
        bool,
        typer.Option(
            "--patch", help="Write the result's settings into the script; autotune patch --reverse reverts them."
        ),
    ] = False,
    effective_batch: Annotated[
        str,
        typer.Option(
            help="Try other batch sizes too, which changes what a step learns. Default: the script's.", metavar="free"
        ),
    ] = "",
    json: Json = False,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Tunes a training script without changing a line of it: autotune run -- python train.py --epochs 90."""
    from autotune.commands.tune import tune_and_tell
    from autotune.scripts.script import Script

    script = Script.of(command or ())
    parsed = Options.parse({**options, "effective_batch": effective_batch}, target=script.text, script=script.command)
    if dry_run:
        _look(parsed, as_json=json, quiet=quiet)
    else:
        raise typer.Exit(tune_and_tell(parsed, as_json=json, quiet=quiet, patching=patch))


def _look(options: Options, *, as_json: bool, quiet: bool) -> None:
    """Shows the dry run of a script."""
    from json import dumps

    from autotune.commands.tuning import Tuning
    from autotune.search.interrupts import Interrupts
    from autotune.search.stopping import Budget
    from autotune.secrets import masked_data
    from autotune.terminal.console import make_console
    from autotune.terminal.look import look_data, look_lines
    from autotune.terminal.progress import make_progress

    console = make_console()
    budget = Budget(options.budget_seconds, started=STARTED)
    with Interrupts() as interrupts, make_progress(console, quiet=quiet, seconds=budget.remaining) as progress:
        look = Tuning(options, progress, budget, interrupts).look()
    if as_json:
        say(dumps(masked_data(look_data(*look)), indent=2, default=str))
    else:
        console.print(look_lines(*look))
