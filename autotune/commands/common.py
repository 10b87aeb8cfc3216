"""What all sub-commands share: how they report an error, when they began, and how they write."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

from autotune.errors import AutotuneError, Interrupted, UsageError

STARTED = time.monotonic()
"""The budget counts from here, not from the start of the process: where a shell executes its last command in its own
place, that is as old as the shell."""
INTERRUPTED_STATUS = 130
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


def write_text(text: str, out: Path | None) -> None:
    """Writes a file whole or not at all; without one, to stdout.

    Raises:
        UsageError: The file cannot be written.
    """
    text = text.removesuffix("\n")
    if out is None:
        say(text)
        return
    from autotune.files import write_whole

    try:
        write_whole(out, text + "\n")
    except OSError as error:
        raise UsageError(f"--out: {out} cannot be written: {error.strerror or error}; choose another") from error
