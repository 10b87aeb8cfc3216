"""Checks the command lines for a fleet's machines, so that a typo is reported at once rather than hours later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from autotune.commands.run import run
from autotune.commands.tune import tune
from autotune.errors import UsageError
from autotune.sessions.options import OFFERED, Options

PATHS = {"writable"}
"""Options that name files of the machine, which this one may not have."""
_REFUSED: Any = typer.BadParameter.__base__
"""Base of click's usage errors. Some versions of typer include click, and others depend on it."""


def require_understood(machine: str, words: Sequence[str]) -> None:
    """Refuses a command line that the machine would refuse; paths are not checked, since they are the machine's.

    Args:
        machine: Its name in the fleet's file.
        words: Its command line, after ``autotune``.

    Raises:
        UsageError: An option is unknown or invalid.
    """
    command, rest = (run, words[1:]) if words[:1] == ("run",) else (tune, words)
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_interspersed_args": command is not run})(command)
    try:
        typed = get_command(app).make_context("autotune", list(rest)).params
    except _REFUSED as error:
        raise UsageError(f"the options of {machine}: {error.format_message()}") from None
    try:
        given = {name: typed[name] for name in OFFERED.keys() & typed.keys() - PATHS}
        Options.parse(given, target="", script=tuple(typed.get("command") or ()))
    except UsageError as error:
        raise UsageError(f"the options of {machine}: {error}") from None
