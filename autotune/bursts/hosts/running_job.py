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
    """How a job ended.

    Attributes:
        message: The structured message (``result``, ``failure`` or ``error``), if one came.
        status: Exit status; negative for a signal; None if unknown.
        timed_out: The deadline passed and the tree was killed.
        killed_by_kernel: The kernel's out-of-memory killer struck meanwhile.
        phase: The last phase that it reached.
        seconds: Seconds from the request until its last process ended.
        stderr_tail: The last lines that it printed.
    """

    message: dict[str, Any] | None = None
    status: int | None = None
    timed_out: bool = False
    killed_by_kernel: bool = False
    phase: str = "start"
    seconds: float = 0.0
    stderr_tail: str = ""


@dataclass(eq=False)
class Live:
    """A job that was requested.

    Attributes:
        number: Number of the job, which its events carry.
        child: The process that got the request: the forkserver, or the job's own interpreter.
        forked: Whether the child is a forkserver.
        began: `time.monotonic()` of the request.
        kills_before: How often the kernel's out-of-memory killer had struck before the request.
        printed_before: Bytes that the child had printed before the request, for other jobs.
        pid: Id of the job's own process, once it is known.
        ended: What is known about its end so far.
        over: Whether it has ended.
        inbox: Events that came while the events of another job were awaited.
        strays: Processes that it started and whose parents have ended.
        stopped: Ids of the processes that are stopped until `resume`.
        spared: Ids of the processes that are not stopped with the others.
    """

    number: int
    child: Child
    forked: bool
    began: float
    kills_before: int
    printed_before: int = 0
    pid: int | None = None
    ended: Ended = Ended()
    over: bool = False
    inbox: deque[dict[str, Any]] = field(default_factory=deque)
    strays: set[psutil.Process] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    spared: set[int] = field(default_factory=set)

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
