"""A host, seen from the parent: a training process that stays alive, and in which players play."""

from __future__ import annotations

import time
from typing import Any

from autotune.bursts.hosts.isolation import Isolation, lost_its_forkserver
from autotune.bursts.hosts.protocol import Request
from autotune.bursts.hosts.running_job import Ended
from autotune.timing.protocol import Command

END_SECONDS = 1.0
"""Least time for the end of each player: two steps on the largest samples, and a look at memory."""


class Host:
    """A process that trains as commanded; it starts at once, with its first player.

    Between two commands it is stopped with all its processes while other jobs live, so that it takes nothing from them.

    Args:
        isolation: Where its process comes from.
        request: Its first player, and settings for all players.
        deadline: `time.monotonic()` at which its process must exist.

    Raises:
        TargetError, WorkloadError: The module can no longer be imported.
        IsolationError: No process could be started.
        Interrupted: Asked to end.
    """

    def __init__(self, isolation: Isolation, request: Request, deadline: float) -> None:
        self.request = request
        self.ended: Ended | None = None
        self._isolation = isolation
        self._players = 0
        self._live = isolation.open(request, max(0.0, deadline - time.monotonic()))

    @property
    def stands(self) -> bool:
        """Whether it has not ended."""
        return self.ended is None

    def can_play(self, request: Request) -> bool:
        """Whether another player can join: none of its settings needs a new process."""
        own = {"point", "plan", "seed", "largest_samples", "number", "asked_at"}
        same = self.request.model_dump(exclude=own) == request.model_dump(exclude=own)
        return same and self.request.point.can_share_process(request.point)

    def seat(self) -> int:
        """The number of a new player; the first is the one that the host starts with."""
        self._players += 1
        return self._players - 1

    def ask(self, command: Command | None, patience: float, deadline: float) -> dict[str, Any] | None:
        """Sends a command and returns the answer; None if the process has ended instead.

        Args:
            command: The command; None to wait for the event after its first player's first steps.
            patience: `time.monotonic()` at which it is killed.
            deadline: The same while it evaluates.

        Raises:
            Interrupted: Asked to end.
        """
        if not self.stands:
            return None
        if command is not None:
            self._isolation.command(self._live, command)
        self._live.resume()
        event = self._isolation.wait(self._live, patience, deadline)
        if event is None:
            ended = self._end(deadline)
            if command is not None or not lost_its_forkserver(self._live, ended):
                return None
            self.ended = None
            self._live = self._isolation.open(self.request, max(0.0, patience - time.monotonic()))
            return self.ask(None, patience, deadline)
        self._isolation.rest(self._live)
        return event

    def end(self, deadline: float) -> None:
        """Ends the process in the normal way."""
        if self.stands:
            self._isolation.command(self._live, Command(action="end"))
            self._live.resume()
            self._end(deadline)

    def discard(self) -> None:
        """Kills the process, whatever it is doing."""
        if self.stands:
            self._isolation.discard(self._live)
            self.ended = Ended(timed_out=True, phase=self._live.ended.phase, seconds=self.age_seconds)

    @property
    def age_seconds(self) -> float:
        """Seconds since it was requested."""
        return time.monotonic() - self._live.began

    def _end(self, deadline: float) -> Ended:
        self.ended = self._isolation.end(self._live, max(deadline, time.monotonic() + END_SECONDS))
        return self.ended
