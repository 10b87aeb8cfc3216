"""`autotune launch`: runs a training script with a result's settings."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import reported
from autotune.commands.run import Words


@reported
def launch(
    file: Annotated[Path, typer.Argument(help="A result file of autotune run.")],
    command: Words = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse if this is a different machine, or where a process cannot be entered."),
    ] = False,
    no_realised: Annotated[
        bool, typer.Option("--no-realised", help="Do not record beside FILE the rate that the training reaches.")
    ] = False,
) -> None:
    """Runs a training script with a result's settings: autotune launch FILE -- python train.py --epochs 90."""
    from autotune.hardware.host import read_cpu
    from autotune.results.result import read_result
    from autotune.scripts.launching import differences, launch_environment
    from autotune.scripts.script import Script
    from autotune.scripts.training import Training
    from autotune.terminal.console import make_console, warning_lines

    result, console = read_result(file), make_console()
    script = Script.of(command or ())

    def warn(sentence: str) -> None:
        console.print(warning_lines([sentence]))

    with tempfile.TemporaryDirectory(prefix="autotune-launch-") as folder:
        environment = launch_environment(
            result, file, script, os.environ, Path(folder), strict=strict, realised=not no_realised
        )
        for difference in differences(result, file, script, read_cpu({}), strict=strict):
            warn(difference)
        raise typer.Exit(Training(script, environment, Path(folder), warn, strict=strict).run())
