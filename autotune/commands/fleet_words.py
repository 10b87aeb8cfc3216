"""What autotune on a machine of a fleet would make of its command line: a typo is told here, and not hours later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

from autotune.commands.run import run
from autotune.commands.shared_options import options_of
from autotune.commands.tune import tune
from autotune.errors import UsageError
from autotune.measuring import PER_DOLLAR

_REFUSED: Any = typer.BadParameter.__base__
"""What all refusals of a command line are: of click, which typer brings along or needs, as its version has it."""
_NOT_OF_TUNING = (
    "model", "command", "version", "json", "quiet", "dry_run", "keep", "writable", "network",
)  # fmt: skip
"""Options that say nothing of the search, or name paths that the machine alone can look for."""


def require_understood(machine: str, words: Sequence[str], *, priced: bool) -> None:
    """Refuses what the machine would refuse, as far as that can be told from here.

    Args:
        machine: Its name in the fleet's file.
        words: Of its command line, after ``autotune``.
        priced: Whether the file says what it costs.

    Raises:
        UsageError: An option is unknown or invalid, or needs the machine's price.
    """
    command, rest = (run, words[1:]) if words[:1] == ("run",) else (tune, words)
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"allow_interspersed_args": command is not run})(command)
    try:
        typed = get_command(app).make_context("autotune", list(rest)).params
    except _REFUSED as error:
        raise UsageError(f"the options of {machine}: {error.format_message()}") from None
    if typed.get("objective") == PER_DOLLAR and not priced:
        raise UsageError(
            f"machines.{machine}.dollars_per_hour is missing in the fleet's file: --objective {PER_DOLLAR} needs it"
        )
    if typed["sampler"] == "gp":  # whether scipy is installed is the machine's to say
        typed["sampler"] = "random"
    try:
        options_of(target="", **{name: value for name, value in typed.items() if name not in _NOT_OF_TUNING})
    except UsageError as error:
        raise UsageError(f"the options of {machine}: {error}") from None
