"""Continues a job whose script has finished its training: the script starts again, and so does the job."""

from __future__ import annotations

import dataclasses

from autotune.bursts.hosts.protocol import Request
from autotune.bursts.hosts.running_job import Live
from autotune.timing.protocol import FIRST, Command


class Course:
    """The commands of a job, so that a new process can repeat them.

    Args:
        request: The job.

    Attributes:
        request: The job.
        fruitless: Whether no block was trained since the script began, so that restarting it would not help.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.fruitless = True
        self._last_command: Command | None = None
        self._begins = 0  # where the last requested block begins
        self._joined: dict[int, Command] = {}
        self._first_plays = True
        self._ends: dict[int, int] = {}  # by player: where its last block ends in the stream of samples
        self._anew: set[int] = set()  # players whose streams have begun again at another place

    def note(self, command: Command) -> Command:
        """Records a command; returns the one to send, which may have to name where its block begins."""
        player, until = command.player, command.until
        if until is not None:
            self._begins = self._ends.get(player, 0) if command.start is None else command.start
            self._ends[player] = until
            if player in self._anew:
                self._anew.discard(player)
                command = dataclasses.replace(command, start=self._begins)
        elif command.action == "join":
            self._joined[player] = command
        elif command.action == "leave":
            self.without(player)
        self._last_command = command
        return command

    def without(self, player: int) -> None:
        """Records that a player is out or has left."""
        self._joined.pop(player, None)
        self._first_plays &= player != FIRST

    def again(self) -> list[Command]:
        """The commands for a restarted process whose first player is ready; the last one was interrupted."""
        self.fruitless = True
        if self._last_command is None:
            return []
        last = self._last_command
        if last.action == "train":
            last = dataclasses.replace(last, start=self._begins)
        joins = [command for command in self._joined.values() if command is not last]
        self._anew = {FIRST, *self._joined} - {last.player}
        leaves = [] if self._first_plays else [Command(action="leave", player=FIRST)]
        return [*joins, *leaves, last]


def why_fruitless(error: str | None) -> str:
    """Why restarting the script would not help, and what would.

    Args:
        error: The error by which the script ended after a whole epoch; None if it ended normally.
    """
    if error is None:
        return "the script ended before one block was trained; have it train longer, by more steps or epochs"
    return (
        "the script failed before one block was trained, after it had drawn a whole epoch, which never ends in a burst "
        f"({error}); make epochs longer, or size nothing by the length of an epoch"
    )


def take_over(live: Live, new: Live) -> None:
    """Moves a live job to another process, for all that hold it."""
    for field in dataclasses.fields(Live):
        if field.name not in {"began", "kills_before"}:
            setattr(live, field.name, getattr(new, field.name))
