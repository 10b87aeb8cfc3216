"""What runs on a machine of the fleet: the command ``autotune`` in its own process. This module needs only Python.

Engines send jobs and replies as they are: they hold plain text alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import INTERRUPTED_STATUS

FOLDER = "{folder}"
"""Placeholder in an argument: the folder that holds the job's files and takes its output."""
RESULT = "result.json"
WARM_START = "{warm-start}"
"""Placeholder argument: when the job starts, one ``--warm-start`` option for each known result replaces it."""
GRACE_SECONDS = 60.0
"""Time beyond the budget, for importing, writing and drawing; a command that takes longer hangs. Not tuned."""
ENDING_SECONDS = 20.0
"""Time to end cleanly: killing a running burst and writing a partial result takes some seconds."""
LINE_CHARACTERS = 400
"""Longest line to report."""
LOG_CHARACTERS = 4000
"""Length of the last output to return: the reason for a failure is there."""
# The kernel ends it cleanly when the engine's process is killed, which may already have happened.
_BOOTSTRAP = """\
import os, runpy, signal, sys
from autotune.sandbox.system import end_with_parent
end_with_parent(True, signal.SIGTERM)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("the process that started this job has ended")
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Job:
    """A command of ``autotune`` for a machine.

    `known_results` holds texts of the results to start from, by the path where each is stored; None if a result had not
    arrived when the job was sent. A job that has waited in a queue then reads the path itself, if it can.
    """

    machine: str  # name of its kind
    arguments: tuple[str, ...]  # `FOLDER` in them stands for the folder of the files
    budget_seconds: float  # for the command itself
    files: dict[str, str] = field(default_factory=dict)  # texts by name
    known_results: dict[str, str | None] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)  # None removes a variable that the engine sets


@dataclass(frozen=True)
class Reply:
    """The reply of a job."""

    status: int | None  # exit status of the command; None if it had to be killed
    result: str | None  # text of `RESULT`; None if it wrote none
    log: str  # its last output


def run_job(job: Job, *, shares_files: bool = False) -> Reply:
    """Runs a job. Leaves nothing behind.

    Args:
        job: The job.
        shares_files: Whether this machine sees the files of the one that sent the job: they may be newer than the texts
            that came along. Else a file at such a path may be an old copy.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-fleet-", ignore_cleanup_errors=True) as folder:
        for name, text in job.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        results = _known_results(job.known_results, Path(folder), shares_files=shares_files)
        starts = [f"--warm-start={path}" for path in results]
        arguments = [argument.replace(FOLDER, folder) for argument in job.arguments]
        arguments = [word for argument in arguments for word in (starts if argument == WARM_START else [argument])]
        with Path(folder, "log").open("w+", encoding="utf-8", errors="replace") as log:
            status = _run(arguments, job, Path(folder, RESULT), log.fileno())
            log.seek(0)
            printed = log.read()[-LOG_CHARACTERS:]
        written = Path(folder, RESULT)
        result = written.read_text(encoding="utf-8") if written.is_file() else None
    return Reply(status, result, printed)


def _known_results(texts: dict[str, str | None], folder: Path, *, shares_files: bool) -> Iterator[Path]:
    """Paths of the results that are known by now; writes a text into the folder if it is used instead of the file."""
    for path_text, text in texts.items():
        path = Path(path_text)
        if (shares_files or text is None) and path.is_file():
            yield path
        elif text is not None:
            copy = folder / f"from-{path.parent.name}.json"
            copy.write_text(text, encoding="utf-8")
            yield copy


def _run(arguments: list[str], job: Job, result: Path, log: int) -> int | None:
    """Runs the command; returns its exit status, None if it had to be killed."""
    environment = os.environ | job.environment
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={name: value for name, value in environment.items() if value is not None},
        start_new_session=True,  # an interrupt of the whole job must not arrive twice: the second ends it at once
    )
    try:
        return process.wait(job.budget_seconds + GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:  # the engine cancels the job; a partial result is still returned
        status = _end(process)
        return INTERRUPTED_STATUS if status < 0 and not _is_whole(result) else status  # it may not handle signals yet
    finally:
        _end(process)


def _is_whole(result: Path) -> bool:
    """Whether a result is there, and not partial."""
    try:
        content = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not isinstance(content, dict) or content.get("status") != "partial"


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ends the command and all that it started, cleanly if possible; returns its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
        process.kill()
    return process.wait()


def reason_in(
    text: str, without: str = "no reason was given", *, summary_first: bool = False, of_command: bool = False
) -> str:
    """What an output or an error says of the reason: its last line, unless another is named below.

    Args:
        text: The output.
        without: What to return if it is empty.
        summary_first: Whether the first line says most, except in a traceback.
        of_command: Whether autotune's own command printed it: then all from "error:" on counts.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\n")]
    for number, line in enumerate(lines):
        if of_command and line.startswith("error:"):
            return " ".join(lines[number:])[:LINE_CHARACTERS]
    if not lines:
        return without
    return lines[0 if summary_first and "Traceback" not in text else -1][-LINE_CHARACTERS:]
