"""Runs jobs in processes of their own and gets through whatever the user's code does to them.

With `child` and `cleanup`, the only module that knows the operating system's processes from the parent's side.
Covered: exceptions, crashes, hangs, out-of-memory kills, workers and daemons left behind, a module that cannot be
forked, output without end, a forkserver that is killed or stopped by its own burst; one that somebody else kills,
while it starts or between bursts, is started again once.
Not covered: code that means harm (it runs with the user's own rights), and a process stuck inside a driver, which
no signal ends: it is left after a grace period and told.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autotune.bursts import cleanup
from autotune.bursts.child import Child
from autotune.bursts.cleanup import GRACE_SECONDS, RUN_VARIABLE
from autotune.bursts.protocol import Request, raise_reported
from autotune.errors import Interrupted, IsolationError, WorkloadError

if TYPE_CHECKING:
    import psutil

KILLED = {-9, -15}
"""Exit statuses of SIGKILL, as the kernel sends it when memory is out, and of SIGTERM: not the module's own doing."""
COLD_START_SECONDS = 60.0
"""A forkserver has torch, and nothing of the user's, imported within this, however busy the machine."""


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
    """Starts the forkserver (or fresh interpreters where there is no fork) and runs one job at a time.

    The forkserver is warm, with torch and the user's module imported, or cold where that module cannot be forked: then
    each job imports it again.

    Args:
        target: The user's ``module:attr``; empty when only the machine is probed.
        note: Told what a person should know.

    Raises:
        IsolationError: There is no temporary folder.
    """

    def __init__(self, target: str = "", note: Callable[[str], None] = lambda _: None) -> None:
        self.target = target
        self._note = note
        self._lost = 0
        self.fork_unsafe_reason: str | None = None
        self._started = time.time()
        try:
            self._folder = cleanup.make_run_folder()
        except OSError as error:
            raise IsolationError(f"no temporary folder could be made ({error}); point TMPDIR at one") from error
        self._forkserver: Child | None = None
        self._current: Child | None = None
        self._interrupted = False
        self._count = 0
        self._warm = True
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

        Args:
            deadline_seconds: What the user's module may take; torch's own import is not held against it.

        Raises:
            TargetError: The target leads nowhere.
            WorkloadError: The module raised, hung or ended the process while it was imported.
            IsolationError: Not even torch could be imported.
            Interrupted: See `interrupt`.
        """
        if not self._spawning:
            self._ready_forkserver(deadline_seconds)

    def run(self, request: Request, deadline_seconds: float) -> Ended:
        """Runs one job to its end, or kills its whole tree at the deadline.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
            IsolationError: No process could be started.
            Interrupted: See `interrupt`.
        """
        began = time.monotonic()
        deadline = began + deadline_seconds
        kills_before = cleanup.kernel_kills()
        self._count += 1
        # Numbered, so that a late word of one job's processes is not taken for the next one's.
        request = request.model_copy(update={"number": self._count, "import_as": _absolute(request.target)})
        while True:
            child = self._child_for_job(deadline)
            followed = self._follow(child, request, deadline)
            forked = followed.status is None or child is not self._forkserver or child.alive
            if forked or followed.phase != "start":
                break  # else it had been killed before it could fork, which says nothing about this job
        self._lost = 0
        tail = child.stderr_tail()
        if child is not self._forkserver:
            child.close()
        elif followed.status is None or not child.alive:  # it would not answer the next request either
            self._stop_forkserver()
        cleanup.remove_shared_memory(self._started)
        return dataclasses.replace(
            followed,
            killed_by_kernel=cleanup.kernel_kills() > kills_before,
            seconds=time.monotonic() - began,
            stderr_tail=tail,
        )

    def interrupt(self) -> None:
        """Ends the job that runs and refuses all others, by `Interrupted`; safe in a signal handler.

        It is raised by whoever waits for a child, and nowhere else: what is being written down meanwhile is not torn.
        A job that has sent its result is not lost: it is returned, and the next one is refused.
        """
        self._interrupted = True
        if self._current is not None:
            self._current.wake()

    def close(self) -> None:
        """Kills whatever is left and removes the run's temporary folder. Calling it again does no harm."""
        self._stop_forkserver()
        cleanup.remove_shared_memory(self._started)
        cleanup.remove_folder(self._folder)

    def _child_for_job(self, deadline: float) -> Child:
        """The forkserver, or a fresh interpreter where there is no fork."""
        return (
            Child("worker", [], self._environment(), self._folder)
            if self._spawning
            else self._ready_forkserver(max(0.0, deadline - time.monotonic()))
        )

    def _ready_forkserver(self, import_seconds: float) -> Child:
        """The forkserver; a new one if it has died, and a cold one if it turns out that the module cannot be forked."""
        if self._forkserver is not None and self._forkserver.alive:
            return self._forkserver
        lost = self._forkserver is not None
        self._stop_forkserver()
        if lost and not self._may_start_again("between bursts"):
            raise IsolationError(
                "the forkserver was killed twice before it could start a burst; free memory, or look for what kills it"
            )
        if self._warm:
            forkserver = self._start_forkserver("warm", import_seconds)
            if self.fork_unsafe_reason is None:
                return forkserver
            self._warm = False
            self._stop_forkserver()
        return self._start_forkserver("cold", import_seconds)

    def _may_start_again(self, when: str) -> bool:
        """Whether a forkserver that was killed, through no job's fault, is to be replaced: once in a row."""
        self._lost = (self._lost + 1) % 2
        if self._lost:
            self._note(f"the forkserver was killed {when}, by the system or by somebody, and is started again")
        return bool(self._lost)

    def _start_forkserver(self, mode: str, import_seconds: float) -> Child:
        """Starts a forkserver and waits until it is ready."""
        arguments = [_absolute(self.target), str(self._folder), str(os.getpid()), mode]
        forkserver = self._forkserver = Child("forkserver", arguments, self._environment(), self._folder)
        with self._attending(forkserver):
            event = forkserver.next_event(time.monotonic() + COLD_START_SECONDS)
            has_torch = event is not None and event["event"] == "torch"
            deadline = time.monotonic() + import_seconds  # from here on the time is the user's
            if has_torch:
                event = forkserver.next_event(deadline)
        if event is not None and event["event"] == "ready":
            self.fork_unsafe_reason = event["fork_unsafe_reason"] if mode == "warm" else self.fork_unsafe_reason
            return forkserver
        tail = forkserver.stderr_tail()
        killed = event is not None and event["event"] == "end" and forkserver.exit_status() in KILLED
        self._stop_forkserver()
        if killed and self._may_start_again("while it imported the module"):
            return self._start_forkserver(mode, max(0.0, deadline - time.monotonic()))
        if event is None and not has_torch:
            raise IsolationError(
                f"a process did not import torch within {COLD_START_SECONDS:.0f} s; end other work on this machine"
            )
        if event is None:
            raise WorkloadError(
                f"importing {self.target!r} did not finish within {import_seconds:.0f} s; "
                "move slow work from the module's top level into build()"
            )
        if event["event"] == "woken":
            raise Interrupted
        if event["event"] == "error":
            raise_reported(event)
        twice = " twice, by a signal: free memory, or look for what kills it" if killed else ""
        raise WorkloadError(f"importing {self.target!r} ended the process{twice}; last output: {tail or 'none'}")

    @contextlib.contextmanager
    def _attending(self, child: Child) -> Iterator[None]:
        """While open, `interrupt` wakes whoever waits for this child."""
        self._current = child
        try:
            if self._interrupted:
                raise Interrupted
            yield
        finally:
            self._current = None

    def _follow(self, child: Child, request: Request, deadline: float) -> Ended:
        """Sends a request, reads its events to the end of the job, and leaves no process of it."""
        ended = Ended()
        try:
            with self._attending(child):
                child.clear_stderr()
                child.send(request.model_copy(update={"asked_at": time.time()}).to_line())
                while True:
                    event = child.next_event(deadline)
                    kind = event["event"] if event is not None else None
                    if event is None and not ended.timed_out:
                        ended = dataclasses.replace(ended, timed_out=True)
                        self._kill_job(child)
                        deadline = time.monotonic() + GRACE_SECONDS
                    elif event is None:  # stuck for good
                        return ended
                    elif kind == "end":
                        return dataclasses.replace(ended, status=child.exit_status())
                    elif kind == "woken":
                        if ended.message is None:
                            raise Interrupted
                        return dataclasses.replace(ended, status=0)
                    elif event.get("number") != request.number:
                        continue
                    elif kind == "exit":
                        return dataclasses.replace(ended, status=event["status"])
                    elif kind == "phase":
                        ended = dataclasses.replace(ended, phase=event["phase"])
                    else:
                        ended = dataclasses.replace(ended, message=event)
        finally:
            self._kill_job(child)

    def _kill_job(self, child: Child) -> None:
        """Ends everything below the forkserver; what has lost its forkserver, or was spawned, is known by its mark."""
        if child is self._forkserver and child.alive:
            cleanup.end_processes(lambda: _below(child))
        else:
            cleanup.end_processes(lambda: [*_below(child), *cleanup.members_of_run(str(self._folder), child.pid)])

    def _stop_forkserver(self) -> None:
        forkserver, self._forkserver = self._forkserver, None
        if forkserver is not None:
            cleanup.end_processes(lambda: _below(forkserver))  # before it ends: by then its orphans would be nobody's
            forkserver.close()
            self._kill_job(forkserver)

    def _environment(self) -> dict[str, str]:
        """The user's environment, with temporary files in the run's folder, to be removed with it."""
        self._folder.mkdir(exist_ok=True)  # the forkserver removes it when it ends
        # One cache for all bursts, and the one that torch uses by itself: the user's training then starts warm.
        cache = Path(tempfile.gettempdir()) / f"torchinductor_{_user_name()}"
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            **os.environ,
            "TMPDIR": str(self._folder),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            RUN_VARIABLE: str(self._folder),
        }


def _below(child: Child) -> list[psutil.Process]:
    return cleanup.descendants(child.process)


def _absolute(target: str) -> str:
    """The target with its file's path made absolute: the user's module may change the working directory."""
    named, colon, attribute = target.rpartition(":")
    if not named.endswith(".py"):
        return target
    with contextlib.suppress(OSError):  # the working directory has been deleted
        return f"{Path(named).resolve()}{colon}{attribute}"
    return target


def _user_name() -> str:
    """The name that torch puts into its cache folder's name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in the password file
        return str(os.getuid()) if hasattr(os, "getuid") else "user"
