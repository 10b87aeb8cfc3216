"""Lets a job go on where its script has trained all that it trains: the script begins again, and the job with it."""

from __future__ import annotations

import dataclasses

from autotune.bursts.live import Live
from autotune.bursts.protocol import Request
from autotune.recorder.protocol import FIRST, Command


class Course:
    """What a job was asked for, to be asked for again.

    Args:
        request: The job.

    Attributes:
        request: The job.
        fruitless: Whether it has trained no block since its script began, so that beginning again would not help.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.fruitless = True
        self._asked: Command | None = None
        self._begins = 0  # of the block that was asked for last
        self._joined: dict[int, Command] = {}
        self._first_plays = True
        self._ends: dict[int, int] = {}  # of each player's last block, its place in the stream of samples
        self._anew: set[int] = set()  # players whose streams have begun again, elsewhere

    def note(self, command: Command) -> Command:
        """Takes in what it is asked; returns what it must be asked for instead, for the same."""
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
        self._asked = command
        return command

    def without(self, player: int) -> None:
        """A player is out, or has left."""
        self._joined.pop(player, None)
        self._first_plays &= player != FIRST

    def again(self) -> list[Command]:
        """What a process that has begun again is asked, once its first player is ready: the last is what was asked."""
        self.fruitless = True
        if self._asked is None:
            return []
        asked = self._asked
        if asked.action == "train":
            asked = dataclasses.replace(asked, start=self._begins)
        joins = [command for command in self._joined.values() if command is not asked]
        self._anew = {FIRST, *self._joined} - {asked.player}
        leaves = [] if self._first_plays else [Command(action="leave", player=FIRST)]
        return [*joins, *leaves, asked]


def why_fruitless(error: str | None) -> str:
    """Why beginning again would not help, and what would.

    Args:
        error: That the script ended by, once it had drawn a whole epoch; None: it ended as it should.
    """
    if error is None:
        return "the script ended before one block was trained; have it train longer, by more steps or epochs"
    return (
        f"the script failed before one block was trained, when it had drawn a whole epoch, which never ends in a burst "
        f"({error}); have an epoch hold more batches, or size nothing by it"
    )


def take_over(live: Live, new: Live) -> None:
    """Lets whoever holds a job have another process of it."""
    for field in dataclasses.fields(Live):
        if field.name not in {"began", "kills_before"}:
            setattr(live, field.name, getattr(new, field.name))
