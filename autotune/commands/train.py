"""`autotune train`: trains for real, and tunes meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import Quiet, reported
from autotune.commands.run import Words
from autotune.sessions.options import OFFERED, words_of


@reported
def train(
    command: Words = None,
    out: Annotated[
        Path | None, typer.Option(*words_of("out"), help=str(OFFERED["out"].description), metavar="FILE")
    ] = None,
    allow: Annotated[
        str, typer.Option(help="Settings to try although they change what is learned: precision.", metavar="KNOB,…")
    ] = "",
    quiet: Quiet = False,
) -> None:
    """Trains for real, and finds faster settings meanwhile: autotune train -- python train.py --epochs 90."""
    from autotune.bursts.hosts.cleanup import make_run_folder
    from autotune.knobs import allowed_knobs
    from autotune.sandbox.view import remove_folder
    from autotune.scripts.live import Live
    from autotune.scripts.script import Script
    from autotune.sessions.outputs import require_result_place
    from autotune.terminal.console import make_console, warning_lines
    from autotune.wording import labelled

    allowed = allowed_knobs(allow)
    script, console = Script.of(command or ()), make_console()
    if out is not None:
        require_result_place(out)

    def say(sentence: str) -> None:
        if not quiet:
            console.print(labelled("autotune", sentence, "bold"), soft_wrap=True)

    def warn(sentence: str) -> None:
        if not quiet:
            console.print(warning_lines([sentence]))

    folder = make_run_folder()
    try:
        raise typer.Exit(Live(script, out, folder, say, allowed).run(warn))
    finally:
        remove_folder(str(folder))
