"""Sends a job to every kind of machine, sends it again if the machine is lost, and stores each result on arrival.

An `Engine` reaches the machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from autotune.errors import INTERRUPTED_STATUS, ResultFileError
from autotune.fleet.job import Job, Reply, reason_in
from autotune.fleet.plan import MachineKind

Fate = Literal["done", "failed", "lost", "absent"]
"""``failed``: the job could not run, and would fail again; ``lost``: its machine was lost, or interrupted it, and
another try may do; ``absent``: there is no such machine."""


@dataclass(frozen=True)
class Ending:
    """How a job ended."""

    machine: str
    fate: Fate
    reply: Reply | None = None
    message: str = ""  # why there is no result; once a result is stored, the message about it
    outcome: str = "brought no result"  # unless it is done: what its machine did

    @property
    def log(self) -> str:
        """Last output of a job without a result."""
        return self.reply.log if self.reply is not None and self.fate != "done" else ""


class Engine(Protocol):
    """Sends jobs to machines, one job at a time for each kind of machine."""

    def start(self, job: Job, kind: MachineKind) -> None:
        """Sends a job; a problem with the job becomes its ending.

        Raises:
            AutotuneError: The engine itself is gone.
        """

    def endings(self, seconds: float) -> Sequence[Ending]:
        """Returns the jobs that have ended; waits up to `seconds` for the first one."""

    def cancel(self) -> None:
        """Asks all running jobs to end; some may still return a result."""

    def close(self) -> None:
        """Ends all running jobs."""


MOST_TRIES = 2
"""Attempts at a job whose machine is lost: the second one rules out bad luck."""
TURN_SECONDS = 0.5
"""Longest delay until an interruption is noticed."""
ENDING_SECONDS = 30.0
"""Time for partial results to arrive after an interruption: a job has 20 s to write one."""
Keep = Callable[[str, str], str]
"""Stores a result, given the machine's name and the result's text; returns the message to print.

Raises a ValueError or a ResultFileError if the text is no result, or cannot be stored."""


@dataclass
class Campaign:
    """Jobs on all machines of a fleet.

    Args:
        keep: Stores each result as it arrives, so that it is not lost with the cluster.
        report: Receives a machine's name and a message at each step.
        asked_to_end: Whether the user has interrupted.
    """

    engine: Engine
    kinds: Mapping[str, MachineKind]
    keep: Keep
    report: Callable[[str, str], None] = lambda _machine, _text: None
    asked_to_end: Callable[[], bool] = lambda: False
    _tries: dict[str, int] = field(default_factory=dict, init=False)
    _partial: dict[str, str] = field(default_factory=dict, init=False)

    def run(self, make_job: Callable[[str], Job]) -> list[Ending]:
        """Runs a job on each machine, all at once; returns how they ended, in the order of the fleet file.

        Args:
            make_job: Makes the job for a machine; called again for a second attempt, when more results may be known.
        """
        endings: dict[str, Ending] = {}
        under_way = set(self.kinds)
        for machine in self.kinds:
            self._send(machine, make_job)
        cancelled: float | None = None
        while under_way:
            if cancelled is None and self.asked_to_end():
                cancelled = time.monotonic()
                self.engine.cancel()
            if cancelled is not None and time.monotonic() - cancelled > ENDING_SECONDS:
                break
            for ending in self.engine.endings(TURN_SECONDS):
                if ending.fate == "lost" and self._tries[ending.machine] < MOST_TRIES and not self.asked_to_end():
                    if ending.reply is not None and ending.reply.result is not None:
                        self._partial[ending.machine] = ending.reply.result
                    self.report(ending.machine, f"ended early ({ending.message}); sent again")
                    self._send(ending.machine, make_job)
                    continue
                endings[ending.machine] = self._ended(ending)
                under_way.discard(ending.machine)
        for machine in under_way:
            endings[machine] = self._ended(Ending(machine, "failed", message="it was interrupted"))
        return [endings[machine] for machine in self.kinds]

    def _send(self, machine: str, make_job: Callable[[str], Job]) -> None:
        self._tries[machine] = self._tries.get(machine, 0) + 1
        self.engine.start(make_job(machine), self.kinds[machine])

    def _ended(self, ending: Ending) -> Ending:
        """Stores a job's result, else the partial one of its first try, and reports how the job ended."""
        machine, fate, reply, stored, kept = ending.machine, ending.fate, ending.reply, "", ""
        own = reply.result if reply is not None else None
        for text in (own, self._partial.pop(machine, None)):
            if text is None or stored:
                continue
            try:
                stored, kept = self.keep(machine, text), text
            except (ValueError, ResultFileError) as error:
                reply = replace(reply, log=f"{reply.log}\n{error}") if reply is not None else None
        if stored and self.asked_to_end():
            fate = "done"
        elif fate == "done" and kept != own:
            fate = "failed"
        why = ending.message or (_why(reply.status, reply.log) if reply is not None else "")
        message = stored if fate == "done" else "; ".join(filter(None, (stored, why)))
        outcome = "brought only a partial result" if stored else ending.outcome
        self.report(machine, message)
        return Ending(machine, fate, reply, message, outcome)


def _why(status: int | None, log: str) -> str:
    """Why a command has no result."""
    output = reason_in(log, "it printed nothing", of_command=True)
    if status is None:
        return f"it hung, and was killed; it printed last: {output}"
    if status == INTERRUPTED_STATUS:
        return f"it was interrupted before it could write a result; it printed last: {output}"
    return output.removeprefix("error: ") if status else f"it exited normally, but wrote no result: {output}"
