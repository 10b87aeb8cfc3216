"""`autotune launch`: trains with what was found, whatever the script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import reported
from autotune.commands.run import Words


@reported
def launch(
    file: Annotated[Path, typer.Argument(help="A result file of autotune run.")],
    command: Words = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse if this is a different machine.")] = False,
) -> None:
    """Runs a training script with a result's settings: autotune launch FILE -- python train.py --epochs 90."""
    from autotune.hardware.host import read_cpu
    from autotune.results.result import read_result
    from autotune.scripts.launching import differences, launch_environment
    from autotune.scripts.script import Script
    from autotune.terminal.console import make_console, warning_lines

    result = read_result(file)
    script = Script.of(command or ())
    environment = launch_environment(result, file, script, os.environ, strict=strict)
    found = differences(result, file, script, read_cpu({}), strict=strict)
    make_console().print(warning_lines(found))
    os.execvpe(script.command[0], script.watched, environment)  # noqa: S606 - it is what the person typed
