"""What a process that trains is asked for: the words that a gate and its parent share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FIRST = 0
"""The player with which a process starts."""


@dataclass(frozen=True)
class Command:
    """What a process does next, for one of its players.

    Attributes:
        action: ``join``: a new player takes its first steps · ``train``: a player trains a block · ``report``: what it
            has measured since its last report · ``leave``: the same, then its loader ends · ``end``: the process ends.
        player: The player's number.
        seat: What a player that joins trains.
        start: Go to this place in the stream of samples first.
        until: Train to this place in the stream of samples.
        leads_in: The block is warm-up, and belongs to no measurement.
    """

    action: str
    player: int = FIRST
    seat: Any = None
    start: int | None = None
    until: int | None = None
    leads_in: bool = False
