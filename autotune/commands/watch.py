"""`autotune watch`: shows a training that is tuned while it runs, from its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.commands.common import reported


@reported
def watch(file: Annotated[Path, typer.Argument(help="The log of a training, or its result file.")]) -> None:
    """Shows a training that autotune train has started: its rate, the setting in play, and the gain so far."""
    from autotune.errors import ResultFileError
    from autotune.results.live import log_path
    from autotune.terminal.console import make_console
    from autotune.terminal.live import follow

    log = log_path(file)
    try:
        follow(log, make_console(stderr=False))
    except OSError as error:
        raise ResultFileError(
            f"expected the log of a training at {log}, got none that can be read ({error.strerror}); name the file "
            "that autotune train has named"
        ) from None
    except KeyboardInterrupt:
        pass
