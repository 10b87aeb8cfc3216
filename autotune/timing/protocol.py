"""The protocol between a gate and its parent: commands to a training process, and the laps that it reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

FIRST = 0
"""Number of the player that a process starts with."""


@dataclass(frozen=True)
class Command:
    """The next command to a process, for one of its players."""

    # ``join``: a new player takes its first steps
    # ``train``: a player trains a block
    # ``report``: a player reports its results since its last report
    # ``leave``: the same, then its loader ends
    # ``end``: the process ends
    action: str
    player: int = FIRST
    seat: Any = None  # what a player that joins trains: its request, or the part of it that a script reads
    start: int | None = None  # go to this position in the stream of samples first
    until: int | None = None  # train to this position in the stream of samples
    leads_in: bool = False  # the block is warm-up, and belongs to no measurement
    lead: int = 1  # untimed micro-batches before a block, if another player used the process or memory; a step at most
    frees: bool = False  # free the device memory that the player does not use, for the next one


class Start(NamedTuple):
    """One start of the loader."""

    create_seconds: float  # to reach the end of the former epoch, and to start the workers
    wait_seconds: float  # until the first batch
    after_epoch: bool  # an epoch had ended, as in training; otherwise the burst started or restarted the loader

    @property
    def seconds(self) -> float:
        """The whole start."""
        return self.create_seconds + self.wait_seconds


@dataclass(frozen=True)
class Lap:
    """A timed run of micro-batches, including starts of the loader."""

    samples: int  # that taught the model something
    consumed: int  # all samples, those of skipped steps included
    seconds: float  # from synchronisation to synchronisation
    wait_seconds: float  # waiting for batches, without starts of the loader
    batches: int  # drawn
    starts: int  # of the loader
    start_seconds: float  # time of the starts on the host
    restarts: int = 0  # starts that did not follow the end of an epoch
    restart_seconds: float = 0.0  # their time on the host
    compiled: bool = False  # whether a graph was compiled meanwhile, which happens once
    joules: float | None = None  # energy of the device; None if it is not reported
    lead: int = 0  # untimed samples that were trained just before
    left_out: float = 0.0  # seconds of evaluation meanwhile, not included
    wait_beside_seconds: float = 0.0  # waiting for batches of other loaders, which train in the same steps

    def with_lead(self) -> Lap:
        """The lap, as if the lead had been timed too, at the lap's own pace.

        Then partners with different micro-batches count the same samples, and all samples that took energy count. The
        time of starts is not extrapolated.
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
            wait_beside_seconds=self.wait_beside_seconds * (1 + more),
            batches=round(self.batches * (1 + more)),
            lead=0,
        )
