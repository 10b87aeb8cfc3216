"""Lets a job go on where its script has trained all that it trains: the script begins again, and the job with it."""

from __future__ import annotations

import dataclasses

from autotune.bursts.live import Live
from autotune.bursts.protocol import Command, Request


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
        self._command = Command()
        self._begins, self._ends = 0, 0

    @property
    def is_under_way(self) -> bool:
        """Whether it was told to train something; before that, its first steps are its beginning anyway."""
        return self._command.until is not None

    def note(self, command: Command) -> None:
        """Takes in what it is told to train."""
        if command.until is not None:
            self._begins = self._ends if command.start is None else command.start
            self._ends, self._command = command.until, command

    def again(self) -> Command:
        """The block that was not finished, from its beginning."""
        self.fruitless = True
        return self._command.model_copy(update={"start": self._begins})


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
