"""A tuning whose result is saved: whole files or none, wherever there is room, also where it was interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.commands.options import Options
from autotune.commands.tuning import Tuning
from autotune.errors import Interrupted, ResultFileError
from autotune.results.files import keep_document
from autotune.results.result import Result
from autotune.search.interrupts import Stop
from autotune.search.progress import Progress
from autotune.search.stopping import Budget


@dataclass(frozen=True)
class Saved:
    """A result and where it lies.

    Attributes:
        result: What was found, in part where it was interrupted.
        path: Its file; None where none could be written.
        failure: Why the file is not where it was wanted.
    """

    result: Result
    path: Path | None
    failure: ResultFileError | None

    def write_page(self) -> tuple[Path | None, str | None]:
        """Writes the report beside the result, unless that had to be written elsewhere; and says why it could not."""
        if self.path is None or self.failure is not None:
            return None, None
        try:
            from autotune.report import write_report

            return write_report(self.result, self.path), None
        except Exception as error:  # noqa: BLE001 - the result is written, and its picture is no reason to fail
            return None, f"the report could not be made: {error}; 'autotune report {self.path}' tries again"


def tune_and_save(wanted: Options, progress: Progress, budget: Budget, stop: Stop) -> Saved:
    """Tunes, and writes the result.

    Args:
        wanted: What was asked for.
        progress: Shows how it goes; opened here.
        budget: For all of it.
        stop: Ends it early, with what is known by then.

    Raises:
        AutotuneError: As `Tuning.run`.
        Interrupted: Asked to end before there was anything to keep.
    """
    try:
        with progress:
            result, wanted_path = Tuning(wanted, progress, budget, stop).run()
    except Interrupted:
        raise Interrupted("interrupted before the first burst ended; nothing was written") from None
    with stop.held():
        path, failure = keep_document(result, wanted_path)
    return Saved(result, path, failure)
