"""What autotune on a machine of a fleet would make of its command line: a typo is told here, and not hours later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from autotune.commands.options import FOR_SCRIPTS, OFFERED, Options
from autotune.commands.run import run
from autotune.commands.tune import tune
from autotune.errors import UsageError

_REFUSED: Any = typer.BadParameter.__base__
"""What all refusals of a command line are: of click, which typer brings along or needs, as its version has it."""


def require_understood(machine: str, words: Sequence[str]) -> None:
    """Refuses what the machine would refuse, as far as that can be told from here: paths are the machine's to look for.

    Args:
        machine: Its name in the fleet's file.
        words: Of its command line, after ``autotune``.

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
        Options.parse({name: typed[name] for name in OFFERED.keys() & typed.keys() - FOR_SCRIPTS}, target="")
    except UsageError as error:
        raise UsageError(f"the options of {machine}: {error}") from None
