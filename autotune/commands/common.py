"""Shared by the sub-commands: options, error reports, the start time, and output."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from autotune.errors import INTERRUPTED_STATUS, AutotuneError, Interrupted
from autotune.sessions.options import OFFERED, help_of, words_of
from autotune.stored import DeviceKind

STARTED = time.monotonic()
"""Start of the budget. Not the start of the process: a shell may replace itself by its last command, and the process is
then as old as the shell."""
DEVICES = "|".join(get_args(DeviceKind))
Target = Annotated[
    str, typer.Option(*words_of("model"), help="What to tune: module:build or file.py:build.", metavar="TARGET")
]
Model = Annotated[
    str,
    typer.Option(
        *words_of("model"), help="The workload, if it is not found under the name in the file.", metavar="TARGET"
    ),
]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code that the file names, wherever it is.")]
Seconds = Annotated[
    str, typer.Option(*words_of("budget"), help="Wall-clock time for everything: 90s, 10m, 1h30m.", metavar="TIME")
]
Device = Annotated[str, typer.Option(help="Default: the first accelerator.", metavar=DEVICES)]
AtLeast = Annotated[
    str,
    typer.Option(
        help="The cheapest must reach this share of the fastest machine's rate, from 0.01 to 1.", metavar="SHARE"
    ),
]
Samples = Annotated[
    str, typer.Option(help="Samples of a whole training, epochs included: adds its time and cost.", metavar="NUMBER")
]
Writable = Annotated[list[Path] | None, typer.Option(help=help_of(OFFERED["writable"]), metavar="PATH")]
Network = Annotated[bool, typer.Option("--network", help=help_of(OFFERED["network"]))]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what was seen and what would be tried, and exit.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Quiet = Annotated[bool, typer.Option(*words_of("quiet"), help="Show nothing but errors.")]
Command = TypeVar("Command", bound=Callable[..., Any])


def reported(command: Command) -> Command:
    """Makes a command report autotune's errors in one sentence on stderr, and exit with the error's status."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except AutotuneError as error:
            from autotune.terminal.console import error_lines, make_console

            make_console().print(error_lines(error))
            raise typer.Exit(error.exit_status) from None
        except Interrupted:
            raise typer.Exit(INTERRUPTED_STATUS) from None

    return run  # type: ignore[return-value]


def say(text: str) -> None:
    """Prints a command's output on stdout; file names keep their bytes."""
    typer.echo(text.encode("utf-8", "surrogateescape"))
