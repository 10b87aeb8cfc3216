"""Commands that run a training script: `run` tunes it, `launch` trains with a result, `train` tunes while it trains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.commands.common import DryRun, Json, Quiet, reported
from autotune.errors import UsageError
from autotune.sessions.options import FOR_MODELS, OFFERED, Options, offering, words_of

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
    from autotune.scripts.launching import differences, orders_of
    from autotune.scripts.script import Script
    from autotune.scripts.training import Training
    from autotune.terminal.console import make_console
    from autotune.wording import labelled

    result, console = read_result(file), make_console()
    script = Script.of(command or ())

    def warn(sentence: str) -> None:
        console.print(labelled("warning", sentence))

    with _run_folder() as folder:
        orders = orders_of(result, file, realised=not no_realised)
        environment = script.environment({**orders, "strict": strict, "shared": str(folder)}, os.environ)
        for difference in differences(result, file, script, read_cpu({}), strict=strict):
            warn(difference)
        raise typer.Exit(Training(script, environment, folder, warn, strict=strict).run())


@reported
def train(
    command: Words = None,
    out: Annotated[
        Path | None, typer.Option(*words_of("out"), help=str(OFFERED["out"].description), metavar="FILE")
    ] = None,
    allow: Annotated[
        str,
        typer.Option(
            help="Settings to try although they change what is learned: precision, compile_mode.", metavar="KNOB,…"
        ),
    ] = "",
    quiet: Quiet = False,
) -> None:
    """Trains for real, and finds faster settings meanwhile: autotune train -- python train.py --epochs 90."""
    from autotune.knobs import allowed_knobs
    from autotune.scripts.live import Live
    from autotune.scripts.script import Script
    from autotune.sessions.outputs import require_result_place
    from autotune.terminal.console import make_console
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
            console.print(labelled("warning", sentence))

    with _run_folder() as folder:
        raise typer.Exit(Live(script, out, folder, say, allowed).run(warn))


@contextlib.contextmanager
def _run_folder() -> Iterator[Path]:
    """A temporary folder for one training.

    Raises:
        UsageError: It cannot be made.
    """
    from autotune.bursts.hosts.cleanup import make_run_folder
    from autotune.sandbox.view import remove_folder

    try:
        folder = make_run_folder()
    except OSError as error:
        raise UsageError(f"no temporary folder could be made ({error}); point TMPDIR at one") from error
    try:
        yield folder
    finally:
        remove_folder(str(folder))
