"""Leaves a user's files as they were before a script ran, also where this process is killed.

What the script's bursts touch is told in a folder of the user's cache, not among temporary files: those do not outlive
a machine that loses power. Whoever tunes next reverts what was left so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from autotune.bursts.cleanup import end_processes
from autotune.hardware import running, this_process
from autotune.recorder.marks import is_marked, marked
from autotune.recorder.reverting import LOCK, Level, Reverted, locked, mark_of, revert, sentence
from autotune.recorder.snapshot import look_before
from autotune.recorder.watchdog import DONE

MOST_NAMED = 5
OWNER = "owner.json"
_PREFIX = "run-"
_WATCHDOG = "import sys; sys.path.append({place!r}); from recorder.watchdog import main; main()"
"""By its path: the watch-dog needs nothing that is installed, and starts in 0.04 s."""
END_SECONDS = 5.0
"""For the watch-dog to end, once it is told that all is done. Chosen."""


def cache_folder() -> Path:
    """Where journals lie that must outlive their run: in ``$XDG_CACHE_HOME``, or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "autotune" / "kept"


class ProtectedFiles:
    """The files that a script's processes touch.

    Args:
        run: The run's temporary folder, whose name all processes of the script have in their environment.
        note: Told what a person should know.

    Attributes:
        folder: Where the recorder tells of files, with a copy of each that was there.
    """

    def __init__(self, run: Path, note: Callable[[str], None] = lambda _: None) -> None:
        self._run = run
        self._note = note
        self._spared: list[str] = []
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._reverted = Reverted()
        try:
            cache_folder().mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=cache_folder()))
        except (OSError, RuntimeError):  # RuntimeError: nobody's home is known
            self.folder = run / "kept"
            self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / OWNER).write_text(json.dumps(this_process()))
        for told in recovered(self.folder):
            note(told)

    def begin(self) -> None:
        """To be called before the script is started: looks at the working directory, and starts the watch-dog."""
        if self._watchdog is not None:
            return
        printed = set()
        for stream in (1, 2):
            with contextlib.suppress(OSError):
                printed.add(os.fstat(stream).st_ino)
        with contextlib.suppress(OSError):
            look_before(str(self.folder), os.path.realpath(os.curdir), printed)
        code = _WATCHDOG.format(place=str(Path(__file__).parents[1]))
        with contextlib.suppress(OSError):
            self._watchdog = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", code, str(self.folder), str(self._run)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            for path in self._spared:
                self._tell_watchdog(os.fsencode(path) + b"\n")

    def spare(self, path: Path) -> None:
        """What begins like this path is autotune's own; a script that makes the folder it lies in may do so again."""
        self._spared.append(os.path.realpath(path))
        for place in Path(self._spared[-1]).parents:
            Path(mark_of(str(self.folder), str(place))).touch()
        self._tell_watchdog(os.fsencode(self._spared[-1]) + b"\n")

    def revert(self, level: Level) -> None:
        """Undoes what the script's processes did, of whom none is needed that the level is about.

        What they have left running is ended before, wherever it has gone: it might go on to write. What a burst leaves
        below a script that waits at its loop is ended with the burst.
        """
        if level != "loop":
            _end_marked(self.folder)
        with (self.folder / LOCK).open("a") as lock:
            locked(lock)
            done = revert(str(self.folder), level, tuple(self._spared))
        for kind, paths in vars(done).items():
            getattr(self._reverted, kind).extend(paths)

    def close(self) -> None:
        """Leaves all files as they were, tells what a person should know of it, and forgets them."""
        if not self.folder.exists():
            return
        self.revert("end")
        if (told := sentence(self._reverted, _named)) is not None:
            self._note(told)
        self._tell_watchdog(DONE)
        if self._watchdog is not None and self._watchdog.stdin is not None:
            with contextlib.suppress(OSError):
                self._watchdog.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._watchdog.wait(END_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tell_watchdog(self, line: bytes) -> None:
        if self._watchdog is not None and self._watchdog.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._watchdog.stdin.write(line)
                self._watchdog.stdin.flush()


def recovered(but: Path) -> list[str]:
    """Reverts what runs left that were killed with their watch-dogs; returns what a person should know, of each."""
    found = []
    for folder in cache_folder().glob(f"{_PREFIX}*") if cache_folder().is_dir() else []:
        with contextlib.suppress(OSError, ValueError):
            owner = json.loads((folder / OWNER).read_text())
            if folder == but or owner[0] != this_process()[0] or running(owner) is not None:
                continue
            with (folder / LOCK).open("a") as lock:
                if not locked(lock):  # its watch-dog is at it
                    continue
                _end_marked(folder)
                told = sentence(revert(str(folder), "end"), _named)
            shutil.rmtree(folder, ignore_errors=True)
            if told is not None:
                found.append(f"an earlier run was killed; {told}")
    return found


def _end_marked(folder: Path) -> None:
    """Ends what was started in a run and still lives."""

    def found() -> list[psutil.Process]:
        processes = []
        for pid in marked(str(folder)):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if is_marked(pid, str(folder)):  # and no other one that has got its id since
                    processes.append(process)
        return processes

    end_processes(found)


def _named(paths: list[str]) -> str:
    """Some of them, as they are seen from here."""
    short = [os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path for path in paths]
    more = f" and {len(short) - MOST_NAMED} more" if len(short) > MOST_NAMED else ""
    return ", ".join(short[:MOST_NAMED]) + more
