"""What runs on a machine of the fleet: the command ``autotune`` in a process of its own. Needs nothing but Python.

Engines send it as it is: arguments, a few small files, and what comes back, are plain texts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER = "{folder}"
"""In an argument: the folder that holds the job's files, and takes what it writes."""
RESULT = "result.json"
WARM_START = "{warm-start}"
"""An argument: the results that the command begins with, an option for each, when the job comes to run."""
GRACE_SECONDS = 60.0
"""Beyond its budget, for importing, writing and drawing; who takes longer hangs. Chosen, not measured."""
ENDING_SECONDS = 20.0
"""For ending in good order: a burst under way is killed, and a partial result is written, in some seconds."""
TOLD_CHARACTERS = 400
"""Of one line."""
LOG_CHARACTERS = 4000
"""Of what it printed last: where it failed, the reason stands there."""
_PR_SET_PDEATHSIG = 1
# The kernel ends it in good order when the engine's own process is killed; that may have happened by now.
_BOOTSTRAP = f"""\
import ctypes, os, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl({_PR_SET_PDEATHSIG}, int(signal.SIGTERM))
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("who has started this is gone")
runpy.run_module("autotune", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Job:
    """A command of ``autotune`` for a machine.

    Attributes:
        machine: The kind of machine, by its name.
        arguments: Of ``autotune``; `FOLDER` in them is the folder of the files.
        budget_seconds: What the command takes by itself.
        files: That it needs, by name.
        known: Results that it begins with, by the path where they come home: their text, None of those that had not
            come home when the job was sent. A job that has waited in a queue finds them where it sees that folder.
        environment: Variables to be set; None: to be left out, whatever the engine sets.
    """

    machine: str
    arguments: tuple[str, ...]
    budget_seconds: float
    files: dict[str, str] = field(default_factory=dict)
    known: dict[str, str | None] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As engines send it."""
        return asdict(self)


@dataclass(frozen=True)
class Reply:
    """What came of a job.

    Attributes:
        status: The command's exit status; None where it had to be killed.
        result: What it wrote to `RESULT`; None: nothing.
        log: What it printed last.
    """

    status: int | None
    result: str | None
    log: str


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job, given by its `Job.plain()`; returns a `Reply` as a dict. What is left behind: nothing."""
    with tempfile.TemporaryDirectory(prefix="autotune-fleet-", ignore_cleanup_errors=True) as folder:
        for name, text in job["files"].items():
            Path(folder, name).write_text(text, encoding="utf-8")
        starts = [f"--warm-start={path}" for path in _begins_with(job["known"], Path(folder))]
        arguments = [argument.replace(FOLDER, folder) for argument in job["arguments"]]
        arguments = [word for argument in arguments for word in (starts if argument == WARM_START else [argument])]
        with Path(folder, "log").open("w+", encoding="utf-8", errors="replace") as log:
            status = _run(arguments, job, log.fileno())
            log.seek(0)
            printed = log.read()[-LOG_CHARACTERS:]
        written = Path(folder, RESULT)
        result = written.read_text(encoding="utf-8") if written.is_file() else None
    return asdict(Reply(status, result, printed))


def _begins_with(known: dict[str, str | None], folder: Path) -> Iterator[Path]:
    """The results that are known by now; one that cannot be seen from here is written into the folder."""
    for place, text in known.items():
        path = Path(place)
        if path.is_file():
            yield path
        elif text is not None:
            copy = folder / f"from-{path.parent.name}.json"
            copy.write_text(text, encoding="utf-8")
            yield copy


def _run(arguments: list[str], job: dict[str, Any], log: int) -> int | None:
    """The command's exit status; None where it had to be killed."""
    wanted = os.environ | job["environment"]
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOTSTRAP, str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={name: value for name, value in wanted.items() if value is not None},
        start_new_session=True,  # who interrupts all of a job must not interrupt it twice: that ends it at once
    )
    try:
        return process.wait(job["budget_seconds"] + GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    except KeyboardInterrupt:  # the engine cancels it: what there is by then is brought home
        return _end(process)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Ends the command in good order if it can be, with all that it has started; returns its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
        process.kill()
    return process.wait()


def last_line(text: str, without: str = "no reason was given") -> str:
    """The last line that says something: there stands the reason; `without` any, what is said instead."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\n")]
    return lines[-1][-TOLD_CHARACTERS:] if lines else without
