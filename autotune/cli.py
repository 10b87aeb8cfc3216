"""The command ``autotune`` and its sub-commands. Each command imports its heavy modules itself."""

from __future__ import annotations

import errno
import os
import sys
import traceback

import typer

from autotune.commands.check import check, cross
from autotune.commands.compare import compare
from autotune.commands.doctor import doctor
from autotune.commands.fleet import fleet
from autotune.commands.patch import patch
from autotune.commands.probe import probe
from autotune.commands.run import launch, run, train
from autotune.commands.show import card, report, schema, show, watch
from autotune.commands.tune import tune
from autotune.errors import UsageError
from autotune.mcp.command import mcp
from autotune.secrets import remember_secrets

app = typer.Typer(
    name="autotune",
    help="Finds the fastest correct way to train a PyTorch model on the machine at hand, and proves it.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing what draws the boxes would take longer than all else
)
app.callback(invoke_without_command=True)(tune)
for command in (probe, doctor, show, watch, report, card, compare, cross, check, fleet, patch, schema, mcp):
    app.command()(command)
for trains in (run, launch, train):  # the training command keeps its own options
    app.command(context_settings={"allow_interspersed_args": False})(trains)


def main() -> None:
    """Entry of the command ``autotune``."""
    remember_secrets(environment=os.environ)
    try:
        app(prog_name="autotune")
    except OSError as error:  # typer handles a broken pipe
        is_of_stdout = traceback.extract_tb(error.__traceback__)[-1].name == typer.echo.__name__
        if not is_of_stdout or error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}:
            raise
        from autotune.terminal.console import abandon

        abandon(sys.stdout)
        typer.echo(
            f"error: stdout cannot be written: {error.strerror}; free some space, or redirect it elsewhere", err=True
        )
        sys.exit(UsageError.exit_status)
