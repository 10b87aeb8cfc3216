"""Runs the command inside the tests' own process: for what it says, where no process of its own is the subject.

Starting Python and importing the command takes a second; calling it takes milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from typer.testing import CliRunner

from autotune.cli import app
from tests.processes import Finished


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """The folder as the working directory, and the former one after that."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_inside(arguments: Sequence[str], folder: Path) -> Finished:
    """Runs the command to its end in a folder; what it raises that is no exit, this raises."""
    began = time.monotonic()
    with working_in(folder):
        result = CliRunner().invoke(app, list(arguments), prog_name="autotune", catch_exceptions=False)
    return Finished(result.exit_code, result.stdout, result.stderr, time.monotonic() - began, ())
