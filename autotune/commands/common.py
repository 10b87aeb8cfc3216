"""What sub-commands share: options, how they report an error, when they began, and how they write."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import typer

from autotune.errors import INTERRUPTED_STATUS, AutotuneError, Interrupted

STARTED = time.monotonic()
"""The budget counts from here, not from the start of the process: where a shell executes its last command in its own
place, that is as old as the shell."""
Model = Annotated[str, typer.Option(help="The workload, where it is not found as the file names it.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run the code that the file names, wherever it lies.")]
Seconds = Annotated[str, typer.Option(help="Wall-clock time for everything.")]
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


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No search for garbage meanwhile: among the records of a thousand files there is none, and each search sees all.

    For commands alone, which have a process of their own: it holds for all threads.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def say(text: str) -> None:
    """Prints what was asked for on stdout; a file's name as it is, whatever bytes it has."""
    typer.echo(text.encode("utf-8", "surrogateescape"))
