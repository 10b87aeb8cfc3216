"""The interface of all engines: they send jobs to machines and report how each one ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from autotune.fleet.job import Job, Reply
from autotune.fleet.plan import MachineKind

Fate = Literal["done", "failed", "lost", "absent"]
"""``failed``: the job could not run, and would fail again; ``lost``: its machine was lost, and another one may do;
``absent``: there is no such machine."""


@dataclass(frozen=True)
class Event:
    """How a job ended.

    Attributes:
        machine: Name of the job's machine.
        fate: How the job ended.
        reply: Its reply, if it is done.
        reason: Why it is not done.
    """

    machine: str
    fate: Fate
    reply: Reply | None = None
    reason: str = ""


class Engine(Protocol):
    """Sends jobs to machines, one job at a time for each kind of machine."""

    def start(self, job: Job, kind: MachineKind) -> None:
        """Sends a job; a problem with the job becomes an event.

        Raises:
            AutotuneError: The engine itself is gone.
        """

    def events(self, seconds: float) -> Sequence[Event]:
        """Returns the jobs that have ended; waits up to `seconds` for the first one."""

    def cancel(self) -> None:
        """Asks all running jobs to end; some may still return a result."""

    def close(self) -> None:
        """Ends all running jobs."""
