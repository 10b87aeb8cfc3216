"""A process that speaks the protocol, seen from its parent."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import psutil

from autotune.bursts.hosts.cleanup import GRACE_SECONDS, descendants
from autotune.errors import IsolationError

STDERR_TAIL_BYTES = 8192
LAST_EVENTS_SECONDS = 0.5
_IMPORT_ROOT = str(Path(__file__).parents[3])
# Not `-m`: that would put the working directory first, where a file may shadow a module. This package's folder comes
# first only until the package is imported: another autotune may be installed, and other files here must not shadow.
_BOOTSTRAP = (
    "import sys; sys.path[0] = {root!r}; import autotune; sys.path.append(sys.path.pop(0)); "
    "from autotune.bursts.jobs.{module} import main; main()"
)


class Child:
    """A process of ours that runs a module's `main`; threads read its pipes, so that it never blocks on them.

    It runs in `folder` if this process's working directory has been deleted: some libraries do not load without one.
    """

    def __init__(self, module: str, arguments: list[str], environment: dict[str, str], folder: Path) -> None:
        code = _BOOTSTRAP.format(root=_IMPORT_ROOT, module=module)
        command = [sys.executable, "-c", code, *arguments]
        self._start(command, environment, folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        self._stdin = cast("IO[bytes]", self._popen.stdin)  # a pipe, as requested
        self._drain(self._read_events, self._popen.stdout, self._popen.stderr)

    def _start(
        self,
        command: list[str],
        environment: dict[str, str],
        folder: Path,
        *,
        stdin: int,
        stderr: int,
        passed: tuple[int, ...] = (),
    ) -> None:
        """Starts a command in its own session; it inherits the descriptors in `passed`."""
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                cwd=None if _has_working_directory() else folder,
                start_new_session=True,
                pass_fds=passed,
            )
        except OSError as error:
            raise IsolationError(f"a child process could not be started ({error}); free memory or processes") from error
        self.pid = self._popen.pid
        # All processes below these belong to its jobs. Made at once: psutil notes when the process started, so that a
        # later process with the same id is not mistaken for it.
        self.roots = [psutil.Process(self.pid)]
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._tail, self._printed_bytes = b"", 0

    def _drain(self, read_events: Callable[[Any], None], events: Any, printed: IO[bytes] | None) -> None:
        """Starts the threads that read its events and its output, and wait for its end."""
        self._reader = threading.Thread(target=read_events, args=(events,), daemon=True)
        self._reader.start()
        threading.Thread(target=self._read_stderr, args=(printed,), daemon=True).start()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._popen.poll() is None

    def send(self, line: str) -> None:
        """Writes a request; if the process is gone, its events show that."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: it has been closed
            self._stdin.write(line.encode() + b"\n")
            self._stdin.flush()

    def wake(self) -> None:
        """Ends a wait for the next event, after all earlier events; safe in a signal handler."""
        self._events.put({"event": "woken"})

    def next_event(self, deadline: float) -> dict[str, Any] | None:
        """The next event, ``end`` when the process has ended; None if the deadline passes first."""
        try:
            return self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def exit_status(self) -> int | None:
        """The exit status, after a moment's grace; None when it is still running."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout=GRACE_SECONDS)
        return None

    @property
    def printed_bytes(self) -> int:
        """Bytes printed so far."""
        return self._printed_bytes

    def stderr_tail(self, since: int = 0) -> str:
        """The last lines of the output after its first `since` bytes."""
        new = self._printed_bytes - since
        return self._tail[-new:].decode(errors="replace")[-2000:].strip() if new > 0 else ""

    def below(self) -> list[psutil.Process]:
        """All processes of its jobs."""
        return [process for root in self.roots if root.is_running() for process in descendants(root)]

    def close(self) -> None:
        """Ends the process itself."""
        with contextlib.suppress(OSError):
            self._popen.kill()
        self.exit_status()
        self._hang_up()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def _read_events(self, pipe: IO[bytes]) -> None:
        for event in events_in(pipe):
            self._events.put(event)

    def _wait_for_end(self) -> None:
        """Reports the process's end. The pipe may stay open, held by processes that the user's code left running."""
        self._popen.wait()
        self._reader.join(timeout=LAST_EVENTS_SECONDS)
        self._say_last()
        self._events.put({"event": "end"})

    def _say_last(self) -> None:
        """Reports what must be known before its end."""

    def _read_stderr(self, pipe: IO[bytes]) -> None:
        while chunk := os.read(pipe.fileno(), 65536):
            self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]
            self._printed_bytes += len(chunk)


def events_in(lines: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a process, one per line; other lines are skipped."""
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):  # the rest of a line whose writer was killed
            event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                yield event


def absolute(target: str) -> str:
    """The target with its file's path made absolute: the user's module may change the working directory."""
    named, colon, attribute = target.rpartition(":")
    if not named.endswith(".py"):
        return target
    with contextlib.suppress(OSError):  # the working directory has been deleted
        return f"{Path(named).resolve()}{colon}{attribute}"
    return target


def _has_working_directory() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False
