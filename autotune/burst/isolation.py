"""Runs jobs in processes of their own and gets through whatever the user's code does to them.

The only module that knows the operating system's processes from the parent's side. Covered: exceptions, crashes,
hangs, out-of-memory kills, workers and daemons left behind, a module that cannot be forked, output without end.
Not covered: code that means harm (it runs with the user's own rights), and a process stuck inside a driver, which
no signal ends: it is left after a grace period and told.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import psutil

from autotune.burst.protocol import Request, raise_reported
from autotune.errors import IsolationError, WorkloadError

GRACE_SECONDS = 3.0
_STDERR_TAIL_BYTES = 8192
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps it, not a place for files of ours
_IMPORT_ROOT = str(Path(__file__).parents[2])
# Not `-m`: that would put the working directory first, where a file may shadow this package.
_BOOTSTRAP = (
    "import sys; sys.path[:1] = []; sys.path.append({root!r}); from autotune.burst.{module} import main; main()"
)


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        message: The structured message (``result``, ``failure`` or ``error``), if one came.
        status: Exit status; negative for a signal; None when it is not known.
        timed_out: The deadline passed and the tree was killed.
        killed_by_kernel: The kernel's out-of-memory killer struck meanwhile.
        phase: How far it came.
        seconds: From the request until the last process had gone.
        stderr_tail: The last that was printed.
    """

    message: dict[str, Any] | None = None
    status: int | None = None
    timed_out: bool = False
    killed_by_kernel: bool = False
    phase: str = "start"
    seconds: float = 0.0
    stderr_tail: str = ""


class Isolation:
    """Starts the forkserver (or fresh interpreters where forking is unsafe) and runs one job at a time.

    Args:
        target: The user's ``module:attr``; empty when only the machine is probed.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.fork_unsafe_reason: str | None = None
        self._started = time.time()
        self._folder = Path(tempfile.mkdtemp(prefix="autotune-"))
        self._zygote: _Child | None = None
        self._spawning = sys.platform != "linux"
        if self._spawning:
            self.fork_unsafe_reason = f"{sys.platform} has no safe fork"

    def __enter__(self) -> Isolation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, deadline_seconds: float) -> None:
        """Imports torch and the user's module.

        Raises:
            TargetError: The target leads nowhere.
            WorkloadError: The module raised, hung or ended the process while it was imported.
        """
        if self._spawning or self._zygote is not None:
            return
        self._zygote = _Child("zygote", [self.target, str(self._folder)], self._environment())
        event = self._zygote.next_event(time.monotonic() + deadline_seconds)
        if event is None or event["event"] != "ready":
            tail = self._zygote.stderr_tail()
            self._stop_zygote()
            if event is None:
                raise WorkloadError(
                    f"importing {self.target!r} did not finish within {deadline_seconds:.0f} s; "
                    "move slow work from the module's top level into build()"
                )
            if event["event"] == "error":
                raise_reported(event)
            raise WorkloadError(f"importing {self.target!r} ended the process; last output: {tail or 'none'}")
        self.fork_unsafe_reason = event.get("fork_unsafe_reason")
        if self.fork_unsafe_reason is not None:
            self._spawning = True
            self._stop_zygote()

    def run(self, request: Request, deadline_seconds: float) -> Ended:
        """Runs one job to its end, or kills its whole tree at the deadline.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
        """
        began = time.monotonic()
        deadline = began + deadline_seconds
        kills_before = _kernel_kills()
        child = self._child_for_job(deadline_seconds)
        followed = self._follow(child, request, deadline)
        if followed.status is not None and child is self._zygote and not child.alive and followed.phase == "start":
            # The forkserver had been killed before it could fork, which says nothing about this job.
            child = self._child_for_job(deadline_seconds)
            followed = self._follow(child, request, deadline)
        tail = child.stderr_tail()
        if child is not self._zygote:
            child.close()
        _remove_shared_memory_of_the_dead(self._started)
        return dataclasses.replace(
            followed,
            killed_by_kernel=_kernel_kills() > kills_before,
            seconds=time.monotonic() - began,
            stderr_tail=tail,
        )

    def close(self) -> None:
        """Kills whatever is left and removes the run's temporary folder. Calling it again does no harm."""
        self._stop_zygote()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _child_for_job(self, deadline_seconds: float) -> _Child:
        """The forkserver, a new one if it has died, or a fresh interpreter where forking is unsafe."""
        if not self._spawning and (self._zygote is None or not self._zygote.alive):
            self._stop_zygote()
            self.start(deadline_seconds)
        if self._spawning or self._zygote is None:
            return _Child("worker", [], self._environment())
        return self._zygote

    def _follow(self, child: _Child, request: Request, deadline: float) -> Ended:
        """Sends a request, reads its events to the end of the job, and leaves no process of it."""
        child.clear_stderr()
        child.send(request.model_copy(update={"asked_at": time.time()}).model_dump_json())
        ended = Ended()
        try:
            while True:
                event = child.next_event(deadline)
                if event is None and not ended.timed_out:
                    ended = dataclasses.replace(ended, timed_out=True)
                    self._kill_job(child)
                    deadline = time.monotonic() + GRACE_SECONDS
                elif event is None or event["event"] == "end":  # stuck for good, or gone without a word
                    return dataclasses.replace(ended, status=child.exit_status())
                elif event["event"] == "exit":
                    return dataclasses.replace(ended, status=event["status"])
                elif event["event"] == "phase":
                    ended = dataclasses.replace(ended, phase=event["phase"])
                else:
                    ended = dataclasses.replace(ended, message=event)
        finally:
            self._kill_job(child)

    def _kill_job(self, child: _Child) -> None:
        """Ends everything below the zygote, or a spawned worker with everything below it."""
        if child is self._zygote:
            _kill_until_gone(lambda: _descendants(child.pid))
        else:
            _kill_until_gone(lambda: [*_session_members(child.pid), *_descendants(child.pid)])

    def _stop_zygote(self) -> None:
        if self._zygote is not None:
            self._kill_job(self._zygote)
            self._zygote.close()
            self._zygote = None

    def _environment(self) -> dict[str, str]:
        """The user's environment, with temporary files in the run's folder, to be removed with it."""
        self._folder.mkdir(exist_ok=True)  # the zygote removes it when it ends
        # One cache for all bursts, and the one that torch uses by itself: the user's training then starts warm.
        cache = Path(tempfile.gettempdir()) / f"torchinductor_{_user_name()}"
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            **os.environ,
            "TMPDIR": str(self._folder),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }


class _Child:
    """A process that speaks the protocol; two threads drain its pipes, so that it can never block on them."""

    def __init__(self, module: str, arguments: list[str], environment: dict[str, str]) -> None:
        code = _BOOTSTRAP.format(root=_IMPORT_ROOT, module=module)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise IsolationError(f"a child process could not be started ({error}); free memory or processes") from error
        self.pid = self._process.pid
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stderr: collections.deque[bytes] = collections.deque()
        self._stdin = cast("IO[bytes]", self._process.stdin)  # pipes were asked for, so there are pipes
        drains = ((self._read_events, self._process.stdout), (self._read_stderr, self._process.stderr))
        for drain, pipe in drains:
            threading.Thread(target=drain, args=(pipe,), daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, line: str) -> None:
        """Writes a request; a process that is gone already shows in its events."""
        with contextlib.suppress(OSError):
            self._stdin.write(line.encode() + b"\n")
            self._stdin.flush()

    def next_event(self, deadline: float) -> dict[str, Any] | None:
        """The next event, ``end`` being the process's own; None when the deadline passed first."""
        try:
            return self._events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def exit_status(self) -> int | None:
        """The exit status, after a moment's grace; None when it is still running."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=GRACE_SECONDS)
        return None

    def stderr_tail(self) -> str:
        """The last lines that were printed."""
        return b"".join(self._stderr).decode(errors="replace")[-2000:].strip()

    def clear_stderr(self) -> None:
        self._stderr.clear()

    def close(self) -> None:
        """Ends the process itself."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self.exit_status()
        with contextlib.suppress(OSError):
            self._stdin.close()

    def _read_events(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            with contextlib.suppress(ValueError):  # the rest of a line whose writer was killed
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    self._events.put(event)
        self._events.put({"event": "end"})

    def _read_stderr(self, pipe: IO[bytes]) -> None:
        size = 0
        while chunk := os.read(pipe.fileno(), 65536):
            self._stderr.append(chunk[-_STDERR_TAIL_BYTES:])
            size += len(self._stderr[-1])
            while len(self._stderr) > 1 and size > 2 * _STDERR_TAIL_BYTES:
                size -= len(self._stderr.popleft())


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _session_members(session: int) -> list[psutil.Process]:
    """Processes of a session, orphans included; only the leader itself where there are no sessions."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == session or (hasattr(os, "getsid") and os.getsid(process.pid) == session):
                members.append(process)
    return members


def _kill_until_gone(find: Any) -> None:
    """Kills what `find` finds, again and again until it finds nothing or the grace period is over."""
    deadline = time.monotonic() + GRACE_SECONDS
    while alive := [process for process in find() if _is_running(process)]:
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if time.monotonic() > deadline:
            return
        psutil.wait_procs(alive, timeout=0.1)


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kernel_kills() -> int:
    """How often the kernel's out-of-memory killer has struck on this machine; 0 where it is not told."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _remove_shared_memory_of_the_dead(since: float) -> None:
    """Removes torch's shared memory files whose process was killed between making and unlinking them."""
    for file in _torch_shared_memory_files():
        with contextlib.suppress(OSError, ValueError):
            owner = int(file.name.split("_")[1])
            if file.stat().st_mtime >= since - 1 and not psutil.pid_exists(owner):
                file.unlink()


def _torch_shared_memory_files() -> Iterable[Path]:
    return _SHARED_MEMORY.glob("torch_*") if _SHARED_MEMORY.is_dir() else ()


def _user_name() -> str:
    """The name that torch puts into its cache folder's name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in the password file
        return str(os.getuid()) if hasattr(os, "getuid") else "user"
