"""`autotune mcp`: serves commands to agents and editors, over the Model Context Protocol."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import reported
from autotune.errors import UsageError


@reported
def mcp(
    folder: Annotated[
        Path | None, typer.Option(help="Where paths and targets are looked for; the working directory when left out.")
    ] = None,
    out_anywhere: Annotated[
        bool, typer.Option("--out-anywhere", help="Let tools write outside the folder too.")
    ] = False,
) -> None:
    """Serves probe, dry_run, run, show, check and compare to an MCP client, on stdin and stdout."""
    if find_spec("mcp") is None:
        raise UsageError("autotune mcp needs the package mcp, which is not installed; pip install 'mcp>=2.3'")
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise UsageError(f"--folder: {folder} cannot be worked in: {error.strerror}; name another") from error
    from autotune.mcp.server import serve

    serve(out_anywhere=out_anywhere)
