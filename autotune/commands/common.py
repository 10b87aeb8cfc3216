"""What sub-commands share: options, how they report an error, when they began, and how they write."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from autotune.commands.options import OFFERED, help_of
from autotune.errors import INTERRUPTED_STATUS, AutotuneError, Interrupted
from autotune.hardware import DeviceKind

STARTED = time.monotonic()
"""The budget counts from here, not from the start of the process: where a shell executes its last command in its own
place, that is as old as the shell."""
DEVICES = "|".join(get_args(DeviceKind))
Model = Annotated[str, typer.Option(help="The workload, where it is not found as the file names it.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code that the file names, wherever it lies.")]
Seconds = Annotated[str, typer.Option(help="Wall-clock time for everything: 90s, 10m, 1h30m.", metavar="TIME")]
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
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing but errors.")]
Command = TypeVar("Command", bound=Callable[..., Any])


def reported(command: Command) -> Command:
    """Turns our errors into one sentence on stderr and their exit status, and an interruption into its own."""

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
    """Prints what was asked for on stdout; a file's name as it is, whatever bytes it has."""
    typer.echo(text.encode("utf-8", "surrogateescape"))
