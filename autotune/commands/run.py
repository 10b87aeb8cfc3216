"""`autotune run`: tunes a training script without changing it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autotune.commands.common import DryRun, Json, Quiet, reported
from autotune.sessions.options import FOR_MODELS, Options, offering

Words = Annotated[
    list[str] | None,
    typer.Argument(help="The command that trains, after --.", metavar="-- COMMAND", show_default=False),
]


@reported
@offering(hidden=FOR_MODELS, without={"effective_batch"})
def run(
    command: Words = None,
    *,
    dry_run: DryRun = False,
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
    from autotune.commands.tune import look_and_tell, tune_and_tell
    from autotune.scripts.script import Script

    script = Script.of(command or ())
    parsed = Options.parse({**options, "effective_batch": effective_batch}, target=script.text, script=script.command)
    if dry_run:
        look_and_tell(parsed, as_json=json, quiet=quiet)
    else:
        raise typer.Exit(tune_and_tell(parsed, as_json=json, quiet=quiet, patching=patch))
