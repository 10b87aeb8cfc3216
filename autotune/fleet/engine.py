"""What every engine offers: it takes jobs to machines, and tells what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from autotune.fleet.job import Job, Reply
from autotune.fleet.plan import MachineKind

Fate = Literal["done", "failed", "lost", "absent"]
"""``failed``: it could not be run, and would not be a second time; ``lost``: its machine was, and another one may do;
``absent``: there is no such machine."""


@dataclass(frozen=True)
class Event:
    """How a job ended.

    Attributes:
        machine: The job's.
        fate: How.
        reply: What it brought back, where it is done.
        reason: Why it is not done.
    """

    machine: str
    fate: Fate
    reply: Reply | None = None
    reason: str = ""


class Engine(Protocol):
    """Takes jobs to machines. One job a kind of machine at a time."""

    def start(self, job: Job, kind: MachineKind) -> None:
        """Sends a job; what is wrong with it is an event.

        Raises:
            AutotuneError: The engine itself is gone.
        """

    def events(self, seconds: float) -> Sequence[Event]:
        """What has ended; waits so long for the first one."""

    def cancel(self) -> None:
        """Asks all that is under way to end; some may still bring something back."""

    def close(self) -> None:
        """Ends all that is under way."""
