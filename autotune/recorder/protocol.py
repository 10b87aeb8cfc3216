"""What a process that trains is asked for, and the laps that it reports: what a gate and its parent share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
        straight: No micro-batch leads in, untimed, where several players share the process.
    """

    action: str
    player: int = FIRST
    seat: Any = None
    start: int | None = None
    until: int | None = None
    leads_in: bool = False
    straight: bool = False


class Start(NamedTuple):
    """One start of the loader.

    Attributes:
        create_seconds: Seconds to see the end of the epoch before, and to start the workers.
        wait_seconds: Seconds until the first batch.
        after_epoch: Whether an epoch had ended, as in training; otherwise the burst began or restarted the loader.
    """

    create_seconds: float
    wait_seconds: float
    after_epoch: bool

    @property
    def seconds(self) -> float:
        """The whole start."""
        return self.create_seconds + self.wait_seconds


@dataclass(frozen=True)
class Lap:
    """A timed run of micro-batches, starts of the loader and all."""

    samples: int  # that taught the model something
    consumed: int  # all samples, those of skipped steps included
    seconds: float  # from synchronisation to synchronisation
    wait_seconds: float  # waiting for batches, starts of the loader left out
    batches: int  # drawn
    starts: int  # of the loader
    start_seconds: float  # what the starts took the host
    restarts: int = 0  # of the starts, those that no epoch's end brought about
    restart_seconds: float = 0.0  # what they took the host
    compiled: bool = False  # whether something was compiled meanwhile, which is done once
    joules: float | None = None  # that the device took, where it tells
    lead: int = 0  # samples that were trained just before, untimed
    left_out: float = 0.0  # seconds of evaluation that lay in it, and are not among its own

    def with_lead(self) -> Lap:
        """The same, as if what led in had been timed too, at this lap's own pace.

        Partners whose micro-batches differ then count the same samples, and samples are counted for which the device
        took energy. What the starts took belongs to them, and not to a sample.
        """
        if not self.lead or not self.consumed:
            return self
        more = self.lead / self.consumed
        return replace(
            self,
            samples=round(self.samples * (1 + more)),
            consumed=self.consumed + self.lead,
            seconds=self.seconds + more * max(0.0, self.seconds - self.start_seconds),
            wait_seconds=self.wait_seconds * (1 + more),
            batches=round(self.batches * (1 + more)),
            lead=0,
        )
