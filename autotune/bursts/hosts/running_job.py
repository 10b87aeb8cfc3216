"""A running job: its process and all processes that it has started, kept apart from those of other jobs.

They are stopped and continued together, so that a job that waits for its turn takes nothing from the one that trains.
Workers of a job that is only idle would go on filling its queue, and make its next block look faster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import psutil

from autotune.bursts.hosts import cleanup
from autotune.bursts.hosts.child import Child
from autotune.sandbox.system import session_of

STOPPING_ROUNDS = 5
"""How often a tree is listed while it is being stopped: processes that start meanwhile are stopped too."""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    message: dict[str, Any] | None = None  # ``result``, ``failure`` or ``error``, if one came
    status: int | None = None  # negative for a signal; None if unknown
    timed_out: bool = False  # the deadline passed and the tree was killed
    killed_by_kernel: bool = False  # the out-of-memory killer struck meanwhile
    phase: str = "start"  # the last one that it reached
    seconds: float = 0.0  # from the request until its last process ended
    stderr_tail: str = ""


@dataclass(eq=False)
class Live:
    """A job that was requested."""

    number: int  # carried by its events
    child: Child  # the process that got the request: the forkserver, or the job's own interpreter
    forked: bool  # by a forkserver
    began: float  # `time.monotonic()` of the request
    kills_before: int  # by the kernel's out-of-memory killer, before the request
    printed_before: int = 0  # bytes that the child had printed for other jobs
    pid: int | None = None  # None until it is known
    ended: Ended = Ended()
    over: bool = False
    inbox: deque[dict[str, Any]] = field(default_factory=deque)  # events that came while another job's were awaited
    strays: set[psutil.Process] = field(default_factory=set)  # processes that it started and whose parents have ended
    stopped: set[int] = field(default_factory=set)  # process ids, until `resume`
    spared: set[int] = field(default_factory=set)  # ids of processes that are not stopped with the others

    def note(self, event: dict[str, Any]) -> None:
        """Records the job's progress and end from an event; puts other events into the inbox."""
        kind = event["event"]
        if kind == "started":
            self.pid, *others = event.get("pids", [event["pid"]])
            for other in others:  # ranks, each of which hangs below another process
                with contextlib.suppress(psutil.Error):
                    self.strays.add(psutil.Process(other))
        elif kind == "exit":
            self.ended = dataclasses.replace(self.ended, status=event["status"])
            self.over = True
        elif kind == "phase":
            self.ended = dataclasses.replace(self.ended, phase=event["phase"])
        elif kind == "failure" and self.ended.timed_out:
            pass  # its partners were killed before it
        elif kind in {"result", "failure", "error"}:
            self.ended = dataclasses.replace(self.ended, message=event)
        else:
            self.inbox.append(event)

    def processes(self) -> list[psutil.Process]:
        """Its own process, all below it, and those that have lost their parents."""
        if self.pid is None:
            return []
        self.strays = {stray for stray in self.strays if stray.is_running()}  # another process may get its id later
        roots = [*self.strays]
        with contextlib.suppress(psutil.Error):
            roots.append(psutil.Process(self.pid))
        by_id = {process.pid: process for root in roots for process in (root, *cleanup.descendants(root))}
        return list(by_id.values())

    def adopt(self, others: set[int]) -> None:
        """Adopts orphans: processes directly below the forkserver that belong to no other job.

        A process in another job's session, or adopted by another job, belongs to that job.

        Args:
            others: Process ids of other jobs, whose sessions have the same ids, and of the orphans that they adopted.
        """
        if self.forked:
            with contextlib.suppress(psutil.Error):
                below = (child for root in self.child.roots for child in cleanup.children(root))
                orphans = (child for child in below if child.pid != self.pid)
                self.strays |= {orphan for orphan in orphans if not {orphan.pid, session_of(orphan.pid)} & others}

    def stop(self) -> None:
        """Stops its whole tree, until nothing new appears; workers that the job itself has stopped stay its own."""
        seen = set(self.spared)
        for _ in range(STOPPING_ROUNDS):
            new = [process for process in self.processes() if process.pid not in seen]
            if not new:
                return
            for process in new:
                with contextlib.suppress(psutil.Error):
                    if process.status() != psutil.STATUS_STOPPED:
                        process.suspend()
                        self.stopped.add(process.pid)
                seen.add(process.pid)

    def resume(self) -> None:
        """Continues the processes that `stop` has stopped."""
        for process in self.processes():
            if process.pid in self.stopped:
                with contextlib.suppress(psutil.Error):
                    process.resume()
        self.stopped.clear()

    def finished(self, tail: str) -> Ended:
        """How it ended, once none of its processes is left."""
        return dataclasses.replace(
            self.ended,
            killed_by_kernel=cleanup.kernel_kills() > self.kills_before,
            seconds=time.monotonic() - self.began,
            stderr_tail=tail,
        )
