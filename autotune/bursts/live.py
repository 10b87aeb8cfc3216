"""A job that lives: its process and all that it has started, told apart from those of other jobs beside it.

Its processes are stopped and continued as one, so that a runner that waits for its turn takes nothing from the one that
trains: workers of a runner that is merely idle would go on filling its queue, and flatter its next block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import psutil

from autotune.bursts import cleanup
from autotune.bursts.child import Child

STOPPING_ROUNDS = 5
"""How often a tree is listed again while it is being stopped: what starts meanwhile is stopped too."""


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


@dataclass(eq=False)
class Live:
    """A job that was asked for.

    Attributes:
        number: Of the job; its events carry it.
        child: The process that was asked: the forkserver, or the job's own interpreter.
        forked: Whether the child is a forkserver.
        began: `time.monotonic()` of the request.
        kills_before: How often the kernel's out-of-memory killer had struck by then.
        printed_before: What the child had printed by then, in bytes: of other jobs.
        pid: Of the job's own process, once it is known.
        ended: What is known of its end so far.
        over: Whether it has ended.
        inbox: Events that came while somebody else's were waited for.
        strays: Processes that it started and that have lost their parents.
        stopped: Process ids of what is stopped until `resume`.
        spared: Process ids of what is not stopped with the others.
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
        """Takes in what an event says of the job's progress and end."""
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
            pass  # of a process whose partners have been killed before it
        elif kind in {"result", "failure", "error"}:
            self.ended = dataclasses.replace(self.ended, message=event)
        else:
            self.inbox.append(event)

    def processes(self) -> list[psutil.Process]:
        """Its own process, all below it, and those that have lost their parents."""
        if self.pid is None:
            return []
        self.strays = {stray for stray in self.strays if stray.is_running()}  # another may have its id later
        roots = [*self.strays]
        with contextlib.suppress(psutil.Error):
            roots.append(psutil.Process(self.pid))
        found = {one.pid: one for root in roots for one in (root, *cleanup.descendants(root))}
        return list(found.values())

    def adopt(self, others: set[int]) -> None:
        """Takes over what has lost its parents: whatever hangs below the forkserver and belongs to no other job.

        Other jobs may run beside it: what lies in their sessions, or was adopted by them, is left to them.

        Args:
            others: Process ids of other jobs, whose sessions have the same ids, and of what they took over.
        """
        if self.forked:
            with contextlib.suppress(psutil.Error):
                below = (one for root in self.child.roots for one in cleanup.children(root))
                orphans = (one for one in below if one.pid != self.pid)
                self.strays |= {one for one in orphans if not {one.pid, _session(one)} & others}

    def stop(self) -> None:
        """Stops its whole tree, until nothing new appears; workers that the job itself holds are left to it."""
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
        """Lets go on what `stop` has stopped."""
        for process in self.processes():
            if process.pid in self.stopped:
                with contextlib.suppress(psutil.Error):
                    process.resume()
        self.stopped.clear()

    def finished(self, tail: str) -> Ended:
        """How it ended, once nothing of it is left."""
        return dataclasses.replace(
            self.ended,
            killed_by_kernel=cleanup.kernel_kills() > self.kills_before,
            seconds=time.monotonic() - self.began,
            stderr_tail=tail,
        )


def _session(process: psutil.Process) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(process.pid)
    return None
