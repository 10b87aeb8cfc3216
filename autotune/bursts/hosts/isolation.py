"""Runs jobs in their own processes, and survives whatever the user's code does to them.

With `child`, `live` and `cleanup`, the only module that handles the operating system's processes in the parent.
Covered: exceptions, crashes, hangs, out-of-memory kills, workers and daemons left behind, a module that cannot be
forked, endless output, and a forkserver that its own burst kills or stops. A forkserver that is killed from outside,
while it starts or between bursts, is started again once.
Not covered: malicious code (it runs with the user's own rights), and a process stuck inside a driver, which no signal
ends: it is left after a grace period, and reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.child import Child, absolute
from autotune.bursts.hosts.cleanup import GRACE_SECONDS, RUN_VARIABLE
from autotune.bursts.hosts.compiler_cache import compiler_cache, share_headers
from autotune.bursts.hosts.protocol import Request, raise_reported
from autotune.bursts.hosts.running_job import Ended, Live
from autotune.errors import Interrupted, IsolationError, UsageError, WorkloadError
from autotune.sandbox.system import why_no_fork
from autotune.sandbox.view import remove_folder
from autotune.timing.protocol import Command
from autotune.workload.by_value import ENDING as SENT_ENDING
from autotune.workload.by_value import Sent

if TYPE_CHECKING:
    import psutil

KILLED = {-9, -15}
"""Exit statuses of SIGKILL, which the kernel sends when memory is out, and of SIGTERM: not the module's own doing."""
COLD_START_SECONDS = 180.0
"""A process imports torch, without the user's module, within this time, however busy the machine; from a network's file
system, a first import takes more than a minute. Not tuned."""


class Isolation:
    """Starts the forkserver (or fresh interpreters where there is no fork) and runs jobs.

    The forkserver is warm, with torch and the user's module imported. If that module cannot be forked, it is cold, and
    each job imports the module again.

    Args:
        target: The user's ``module:attr``; empty when only the machine is probed.
        note: Receives messages for the user.
        sent: A function that no import would find; it is written to a file for the processes.
        within: Another run's folder, with which this run's is removed if autotune is killed; None for a folder alone.

    Raises:
        IsolationError: There is no temporary folder.
    """

    def __init__(
        self,
        target: str = "",
        note: Callable[[str], None] = lambda _: None,
        sent: Sent | None = None,
        within: Path | None = None,
    ) -> None:
        self.target = target if sent is None else sent.target
        self._sent = sent
        self._note = note
        self._lost = 0
        self.fork_unsafe_reason = why_no_fork()
        self._started = time.time()
        try:
            self._folder = cleanup.make_run_folder() if within is None else Path(tempfile.mkdtemp(dir=within))
        except OSError as error:
            raise IsolationError(f"no temporary folder could be made ({error}); point TMPDIR at one") from error
        self._forkserver: Child | None = None
        self._current: Child | None = None
        self._interrupted = False
        self._count = 0
        self._live: list[Live] = []
        self._warm = True
        self._spawning = self.fork_unsafe_reason is not None

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, deadline_seconds: float) -> None:
        """Imports torch and the user's module.

        Args:
            deadline_seconds: Time for importing the user's module; importing torch does not count.

        Raises:
            UsageError: There is no torch.
            TargetError: The target does not exist.
            WorkloadError: The module raised, hung or ended the process while it was imported.
            IsolationError: Not even torch could be imported.
            Interrupted: See `interrupt`.
        """
        if find_spec("torch") is None:
            raise UsageError(
                f"expected PyTorch in autotune's environment, {sys.prefix}, but there is none; install it there: "
                f"{sys.executable} -m pip install torch"
            )
        if not self._spawning:
            self._ready_forkserver(deadline_seconds)

    def run(self, request: Request, deadline_seconds: float) -> Ended:
        """Runs one job to its end, or kills its whole tree at the deadline.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
            IsolationError: No process could be started.
            Interrupted: See `interrupt`.
        """
        deadline = time.monotonic() + deadline_seconds
        while True:
            live = self.open(request, max(0.0, deadline - time.monotonic()))
            ended = self.end(live, deadline)
            if not lost_its_forkserver(live, ended):
                return ended

    def open(self, request: Request, deadline_seconds: float) -> Live:
        """Starts a job; `wait` returns its events, and `end` must follow.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
            IsolationError: No process could be started.
            Interrupted: See `interrupt`.
        """
        began = time.monotonic()
        for other in self._live:
            self._stop_whole(other)
        self._count += 1
        # Numbered, so that a late event of one job is not taken for one of the next.
        request = request.model_copy(update={"number": self._count, "import_as": self._import_as(request.target)})
        child = self._child_for_job(request, began + deadline_seconds)
        forked = child is self._forkserver
        live = Live(request.number, child, forked=forked, began=began, kills_before=cleanup.kernel_kills())
        if forked:
            live.printed_before = child.printed_bytes
        else:
            live.pid = child.pid
        line = self._line(request.model_copy(update={"asked_at": time.time()}))  # may fail: then there is no job
        self._live.append(live)
        child.send(line)
        return live

    def _line(self, request: Request) -> str:
        """A request, as sent to the process."""
        return request.to_line()

    def command(self, live: Live, command: Command) -> None:
        """Sends a command to a host; if the host is gone, its events show that."""
        self._send(live, vars(command) | {"seat": command.seat and command.seat.model_dump(mode="json")})

    def _send(self, live: Live, words: dict[str, Any]) -> None:
        live.child.send(json.dumps({"to": live.number, "command": json.dumps(words)}))

    def rest(self, live: Live) -> None:
        """Stops a job with all its processes until `Live.resume`, unless there is no other job to disturb."""
        if len(self._live) > 1:
            self._stop_whole(live)

    def _stop_whole(self, live: Live) -> None:
        self._adopt(live)
        live.stop()

    def wait(self, live: Live, deadline: float, latest: float | None = None) -> dict[str, Any] | None:
        """The next event of a job, apart from those about its progress and its end; None when it is over.

        Args:
            live: The job.
            deadline: `time.monotonic()` at which its whole tree is killed.
            latest: The same while the job evaluates; the deadline when None.

        Raises:
            Interrupted: See `interrupt`.
        """
        with self._attending(live.child):
            while True:
                if live.inbox:
                    return live.inbox.popleft()
                if live.over:
                    return None
                event = live.child.next_event(deadline)
                if event is None and live.ended.phase == "evaluate" and latest is not None:
                    deadline, latest = latest, None
                elif event is None and live.ended.timed_out:  # stuck for good
                    live.over = True
                elif event is None:
                    live.ended = dataclasses.replace(live.ended, timed_out=True)
                    self._kill(live)
                    deadline = time.monotonic() + GRACE_SECONDS
                elif event["event"] == "woken":
                    if live.ended.message is None:
                        raise Interrupted
                    live.ended, live.over = dataclasses.replace(live.ended, status=0), True
                else:
                    self._hand_over(event, live.child)

    def discard(self, live: Live) -> None:
        """Kills a job with all its processes, whatever it is doing."""
        if live not in self._live:  # an interruption has ended it already
            return
        self._kill(live)
        self._live.remove(live)
        if not live.forked:
            live.child.close()
        cleanup.remove_shared_memory(self._started)

    def _hand_over(self, event: dict[str, Any], child: Child) -> None:
        """Gives an event to the job that it is about; the end of a child is the end of all its jobs."""
        for live in self._live:
            if event["event"] == "end" and live.child is child and not live.over:
                live.ended, live.over = dataclasses.replace(live.ended, status=child.exit_status()), True
            elif event.get("number") == live.number:
                live.note(event)

    def end(self, live: Live, deadline: float) -> Ended:
        """Waits for the end of a job, kills it at the deadline, and leaves none of its processes.

        Raises:
            Interrupted: See `interrupt`.
        """
        try:
            while self.wait(live, deadline) is not None:
                pass
        finally:
            self._kill(live)
            self._live.remove(live)
        tail = live.child.stderr_tail(live.printed_before)
        if not live.forked:
            live.child.close()
        elif live.child is self._forkserver and (
            live.ended.status is None or (not live.child.alive and live.ended.phase != "start")
        ):
            self._stop_forkserver()  # it would not answer the next request either
        if live.ended.phase != "start":
            self._lost = 0
        cleanup.remove_shared_memory(self._started)
        return live.finished(tail)

    def interrupt(self) -> None:
        """Ends the running job and refuses all others, by raising `Interrupted`; safe in a signal handler.

        Only code that waits for a child raises it, so that no file is left half written. The result of a job that has
        already sent it is returned, and the next job is refused.
        """
        self._interrupted = True
        if self._current is not None:
            self._current.wake()

    def close(self) -> None:
        """Kills all remaining processes and removes the run's temporary folder. Calling it again does no harm."""
        self._end_all()
        cleanup.remove_shared_memory(self._started)
        remove_folder(str(self._folder))

    def _end_all(self) -> None:
        """Ends every process."""
        for live in [job for job in self._live if not job.forked]:  # not below a forkserver
            Isolation.discard(self, live)
        self._stop_forkserver()

    def _child_for_job(self, _: Request, deadline: float) -> Child:
        """The forkserver, or a fresh interpreter where there is no fork."""
        return (
            Child("worker", [], self._environment(), self._folder)
            if self._spawning
            else self._ready_forkserver(max(0.0, deadline - time.monotonic()))
        )

    def _ready_forkserver(self, import_seconds: float) -> Child:
        """The forkserver; a new one if it has died, and a cold one if the module cannot be forked."""
        if self._forkserver is not None and self._forkserver.alive:
            share_headers(self._folder)  # again, as the cache may be cleared while the run goes on
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
        """Whether to replace a forkserver that was killed through no job's fault: not twice in a row."""
        self._lost = (self._lost + 1) % 2
        if self._lost:
            self._note(f"the forkserver was killed {when}, by the system or by another process, and is started again")
        return bool(self._lost)

    def _start_forkserver(self, mode: str, import_seconds: float) -> Child:
        """Starts a forkserver and waits until it is ready."""
        arguments = [self._import_as(self.target), str(self._folder), str(os.getpid()), mode]
        forkserver = self._forkserver = Child("forkserver", arguments, self._environment(), self._folder)
        with self._attending(forkserver):
            event = forkserver.next_event(time.monotonic() + COLD_START_SECONDS)
            has_torch = event is not None and event["event"] == "torch"
            deadline = time.monotonic() + import_seconds  # from here on, the user's module takes the time
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
        """While open, `interrupt` wakes the code that waits for this child."""
        self._current = child
        try:
            if self._interrupted:
                raise Interrupted
            yield
        finally:
            self._current = None

    def _kill(self, live: Live) -> None:
        """Ends all processes of a job; those spawned, or without their forkserver, are found by their marks."""
        others = [job for job in self._live if job is not live]

        def of_job() -> list[psutil.Process]:
            """Searches each time: a process forked just before its parent was killed is an orphan by now."""
            self._adopt(live)
            return live.processes()

        if live.forked and live.child.alive:
            self._await_start(live)
            cleanup.end_processes(of_job if others else live.child.below)
        else:
            replaced = live.forked and self._forkserver is not None and live.child is not self._forkserver
            run = "" if others or replaced else str(self._folder)  # another forkserver carries the same mark
            cleanup.end_processes(lambda: [*live.child.below(), *cleanup.members_of_run(run, live.child.pid)])

    def _await_start(self, live: Live) -> None:
        """Waits until a requested job has a process: one that started later would never be ended."""
        deadline = time.monotonic() + GRACE_SECONDS
        while live.pid is None and not live.over and (event := live.child.next_event(deadline)) is not None:
            self._hand_over(event, live.child)

    def _adopt(self, live: Live) -> None:
        """Makes a job adopt orphans, unless one of them may be another job's own process."""
        while live.forked and (event := live.child.next_event(0.0)) is not None:  # learn which jobs have started
            self._hand_over(event, live.child)
        others = [job for job in self._live if job is not live]
        if all(job.pid is not None or job.over for job in others if job.child is live.child):
            taken = ((job.pid, *(stray.pid for stray in job.strays)) for job in others)
            live.adopt({pid for pids in taken for pid in pids if pid is not None})

    def _stop_forkserver(self) -> None:
        forkserver, self._forkserver = self._forkserver, None
        if forkserver is not None:
            cleanup.end_processes(forkserver.below)  # before it ends: afterwards its orphans would have no parent
            forkserver.close()
            cleanup.end_processes(lambda: cleanup.members_of_run(str(self._folder), forkserver.pid))

    @property
    def _sent_file(self) -> Path:
        return self._folder / f"build{SENT_ENDING}"

    def _import_as(self, target: str) -> str:
        """The target as a child finds it, from any working directory."""
        return absolute(target) if self._sent is None else str(self._sent_file)

    def _environment(self) -> dict[str, str]:
        """The user's environment, with temporary files in the run's folder, which is removed in the end."""
        self._folder.mkdir(exist_ok=True)  # the forkserver removes it when it ends
        share_headers(self._folder)
        if self._sent is not None and not self._sent_file.exists():
            self._sent.write(self._sent_file)
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(compiler_cache()),
            **os.environ,
            "TMPDIR": str(self._folder),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            RUN_VARIABLE: str(self._folder),
        }


def lost_its_forkserver(live: Live, ended: Ended) -> bool:
    """Whether a job's forkserver was killed before it could fork, through no fault of the job."""
    return live.forked and not live.child.alive and ended.status is not None and ended.phase == "start"
