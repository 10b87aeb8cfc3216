"""Runs a tuning and saves its result, also after an interruption; to the temporary folder if need be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.errors import Interrupted, ResultFileError
from autotune.results.files import keep_document
from autotune.results.result import Result
from autotune.search.interrupts import Stop
from autotune.search.progress import Progress
from autotune.search.stopping import Budget
from autotune.sessions.options import Options
from autotune.sessions.tuning import Tuning


@dataclass(frozen=True)
class Saved:
    """A result and its file.

    Attributes:
        result: The result; partial if the tuning was interrupted.
        path: Its file; None if it could not be written.
        failure: Why the file is not at the requested path; None if it is.
    """

    result: Result
    path: Path | None
    failure: ResultFileError | None

    def write_page(self) -> tuple[Path | None, str | None]:
        """Writes the report beside the result, unless the result had to be written elsewhere.

        Returns:
            The report's path, and the reason if it could not be made.
        """
        if self.path is None or self.failure is not None:
            return None, None
        try:
            from autotune.report import write_report

            return write_report(self.result, self.path), None
        except Exception as error:  # noqa: BLE001 - the result is written; without its report it is still complete
            return None, f"the report could not be made: {error}; 'autotune report {self.path}' tries again"


def tune_and_save(options: Options, progress: Progress, budget: Budget, stop: Stop) -> Saved:
    """Tunes, and writes the result.

    Args:
        options: The options of the command.
        progress: Receives progress events; this function opens it.
        budget: Wall-clock limit for the whole tuning.
        stop: Ends the tuning early, with a partial result.

    Raises:
        AutotuneError: As `Tuning.run`.
        Interrupted: Asked to end before the first burst ended.
    """
    try:
        with progress:
            result, place = Tuning(options, progress, budget, stop).run()
    except Interrupted:
        raise Interrupted("interrupted before the first burst ended; nothing was written") from None
    with stop.held():
        path, failure = keep_document(result, place)
    return Saved(result, path, failure)
