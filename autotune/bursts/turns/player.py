"""A player, seen from the parent: a config in a comparison. It plays in a host, alone or with others."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from autotune.bursts.hosts.block_account import Account, PlayedBlock
from autotune.bursts.hosts.endings import burst_from, counted
from autotune.bursts.hosts.host import Host
from autotune.bursts.hosts.protocol import Request
from autotune.bursts.hosts.running_job import Ended
from autotune.knobs import TrainConfig
from autotune.measuring import Burst
from autotune.timing.player import FILLS
from autotune.timing.protocol import Command

LEAST_SAMPLES, LEAST_BATCHES = 50, 10
"""Least samples of each worker in one block, where reading is waiting; least batches if the data set reads whole ones.
When a worker is stopped, its current wait still ends. That is half a wait on average: a hundredth of the samples, or a
twentieth of the batches. A worker that computes is stopped at once, and needs no more than one batch."""
HANG_SECONDS, HANG_BLOCKS = 15.0, 30
"""A block hangs when it takes this many seconds longer than this many usual blocks of its player. A neighbour on one of
two cores was measured to make training ten to thirty times as slow: that is no hang."""
LOADER_STARTS = 3
"""Starts of its loader that a block may take longer: an epoch may end in it. Not tuned; allows for busy neighbours."""
COMPILING_SECONDS = 120.0
"""Time that compiling may take in a block, for shapes that none of the first batches had, such as that of an epoch's
smaller last batch. Not tuned."""
RECLAIMING_SECONDS = 0.5
"""A lead of this length is long enough to get freed memory back: the first micro-batch takes most of it, an update the
rest. When whole steps led in, of 6.4 s for a language model on an H100, a round took 130 s. Not tuned."""
WARMUP_BLOCKS = 4
"""A player that warms up alone does so in this many blocks: the last one shows how long its blocks should be."""


class Player:
    """A config in a host, from its first steps until it leaves.

    Args:
        host: Its first player starts with the process.
    """

    def __init__(self, host: Host, request: Request) -> None:
        self.request = request
        self.host = host
        self.blocks: list[PlayedBlock] = []  # of this duet
        self.position = 0  # place in the stream of samples that it was last sent to
        self.epoch_samples: int | None = None  # None if endless
        self.unit_samples = self.config.micro_batch  # a block may end after each: a micro-batch, or a step
        self.least_samples = 0  # of a block, so that what stopped workers still read hardly counts
        self.trained_seconds = 0.0  # of all its blocks, in all duets
        self.drained = False  # the batches that its loader had prepared in advance are used up
        self.frees = False  # it frees the device memory that it does not use after each block
        self.decided = False  # it sits out the turns that others still play
        self.seconds = 0.0  # spent waiting for it so far
        self.ended: Ended | None = None
        self.reported: Ended | None = None  # its last report, as the end of one that has ended well
        self._number = host.seat()
        self._account = Account(self.config)
        self._start: int | None = 0
        self._boundary_per_sample = 0.0
        self._longest_block = 0.0
        self._patience_seconds = HANG_SECONDS
        self._filling_seconds = 0.0
        self._pace = self._opening_pace = 0.0

    def start(self, deadline: float) -> None:
        """Waits until it has taken its first steps or has failed, unless it already has.

        Args:
            deadline: `time.monotonic()` at which its host is killed.

        Raises:
            Interrupted: Asked to end.
        """
        if self._pace or not self.stands:
            return
        joins = None
        if self._number:
            joins = Command(action="join", player=self._number, seat=self.request, frees=self.frees)
        event = self._ask(joins, deadline, deadline)
        if event is not None:
            self._account.ready(event)
            batch, loader_seconds = self.config.micro_batch, event["loader_seconds"]
            waiting = LEAST_BATCHES * batch if event["reads_batches"] else LEAST_SAMPLES * self.config.ranks
            waiting = math.ceil(self.request.sample_wait_fraction * waiting)
            self.least_samples = self.config.num_workers * max(batch, waiting)
            self.epoch_samples = event["epoch_samples"]
            self.unit_samples = self.config.effective_batch if event.get("draws_ahead") else batch
            self._pace = self._opening_pace = event["pace"]
            queue_of_worker = self.config.queue_batches / max(1, self.config.num_workers)
            self._filling_seconds = FILLS * queue_of_worker * loader_seconds
            if self.config.num_workers:  # batches already prepared were trained on without waiting
                self._pace = max(self._pace, loader_seconds / (self.config.num_workers * batch))
            self._patience_seconds += LOADER_STARTS * loader_seconds
            self._patience_seconds += COMPILING_SECONDS if self.config.is_compiled else 0.0

    @property
    def config(self) -> TrainConfig:
        """What it trains with."""
        return self.request.point.config

    @property
    def stands(self) -> bool:
        """Whether it has not ended."""
        return self.ended is None

    @property
    def is_lost(self) -> bool:
        """Whether its host ended while another one played."""
        return self.stands and not self.host.stands

    @property
    def opening_seconds(self) -> float:
        """Seconds of training before its first block, without its very first step, which may include one-time work."""
        return self._opening_pace * self.config.effective_batch

    @property
    def pace(self) -> float:
        """Seconds per sample, by its last block of samples in which nothing was compiled, or by its first steps."""
        last = next((block for block in reversed(self.blocks) if block.samples and not block.compiled), None)
        return self.per_sample(last) if last is not None else self._pace

    def per_sample(self, block: PlayedBlock) -> float:
        """Seconds per sample in a block, its share of epoch boundaries included."""
        return block.seconds / max(1, block.samples) + self._boundary_per_sample

    def seconds_from(self, turn: int) -> float:
        """Seconds of its blocks in this duet from a turn on, without those in which something was compiled."""
        return math.fsum(block.seconds for block in self.blocks[turn:] if not block.compiled)

    @property
    def reclaiming_batches(self) -> int:
        """Micro-batches in which it gets the memory back that it has freed: a step, or the beginning of a long one."""
        samples = min(self.config.effective_batch, RECLAIMING_SECONDS / self.pace)
        return max(1, math.ceil(samples / self.unit_samples))

    def begin(self) -> None:
        """Begins a duet: drops the blocks of the previous one."""
        self._pace = self.pace
        self.decided = False
        self.blocks = []

    def lead_samples(self, seconds: float) -> int:
        """Samples after which it is warm: it has trained for `seconds`, and its loader's queue is as in training.

        Rounded up to whole optimizer steps, or to micro-batches where a step is longer; 0 if its first steps were long
        enough.
        """
        seconds = max(0.0, seconds - self.opening_seconds)
        pace = max(self._pace, 1e-9)
        samples = max(seconds / pace, min(self._filling_seconds / pace, self._queue_samples))
        unit = self._unit(samples)
        return unit * math.ceil(samples / unit)

    def warm_up(self, position: int, seconds: float, deadline: float) -> None:
        """Trains alone, before its first duet, up to the place in the stream of samples where the duet begins.

        Args:
            position: That place.
            seconds: How long it should train on the way.
            deadline: `time.monotonic()` at which it is killed.
        """
        lead = self.lead_samples(seconds)
        unit = self._unit(lead)
        start = max(0, position - lead)
        # In whole batches from the beginning of an epoch, as a partner trains it.
        start -= (start % self.epoch_samples if self.epoch_samples else start) % unit
        self._start = self.position = start
        size = unit * math.ceil((position - start) / (WARMUP_BLOCKS * unit))
        while self.stands and self.position < position:
            self.train(min(position, self.position + size), deadline, leads_in=True)
        if self.stands:
            self.begin()

    @property
    def _queue_samples(self) -> int:
        return self.config.queue_batches * self.config.micro_batch

    def _unit(self, samples: float) -> int:
        """The unit to which a number of samples is rounded."""
        step = self.config.effective_batch
        return step if step <= samples else self.unit_samples

    def train(self, position: int, deadline: float, *, leads_in: bool = False, lead: int = 1) -> None:
        """Trains one block, while all other players are stopped.

        Args:
            position: Place in the stream of samples to train to.
            deadline: `time.monotonic()` at which it is killed.
            leads_in: Whether it is warm-up, which no measurement includes.
            lead: Untimed micro-batches before it, if others share its process or memory.
        """
        usual = max(self._longest_block, (position - self.position) * self.pace)
        patience = time.monotonic() + self._patience_seconds + HANG_BLOCKS * usual
        self.position = position
        command = Command(
            action="train",
            player=self._number,
            start=self._start,
            until=position,
            leads_in=leads_in,
            lead=lead,
            frees=self.frees,
        )
        self._start = None
        event = self._ask(command, min(deadline, patience), deadline)
        if event is not None:
            block = self._account.block(event)
            self.blocks.append(block)
            self.drained = event["drained"]
            # The length of an iterable data set's epoch shows only at its end.
            epoch = event["epoch_samples"] or self.epoch_samples
            self._boundary_per_sample = self._account.boundary_seconds / epoch if epoch else 0.0
            if not block.compiled:
                self.trained_seconds += block.seconds
                self._longest_block = max(self._longest_block, block.seconds)

    def report(self, deadline: float, *, leaves: bool) -> None:
        """Reports all blocks of this duet as one measurement; then it `leaves` its host, or stays."""
        if not self.stands:
            return
        event = self._ask(Command(action="leave" if leaves else "report", player=self._number), deadline, deadline)
        if event is None:
            return
        self.drained = event["drained"]  # its workers may have read on meanwhile
        measured = self._account.measurement(event["value"])
        message = {"event": "result", "value": measured} if measured is not None else None
        timed_out = message is None  # it had no time to train anything
        self.reported = Ended(message=message, status=0, phase="warm up", seconds=self.seconds, timed_out=timed_out)
        if leaves:
            self.ended = self.reported

    def burst(self, turns: Sequence[int]) -> Burst:
        """How it ended, or what it last reported, with only the blocks of these turns.

        It timed out if its host has ended meanwhile because of another player.
        """
        ended = self.ended or self.reported or Ended(timed_out=True, phase="warm up", seconds=self.seconds)
        return counted(burst_from(self.request.point, ended), turns)

    def _ask(self, command: Command | None, patience: float, deadline: float) -> dict[str, Any] | None:
        """Sends a command and returns the answer; None if the player has ended instead, by itself or with its host."""
        if not self.host.stands:  # another player has ended it
            return None
        began = time.monotonic()
        event = self.host.ask(command, patience, deadline)
        self.seconds += time.monotonic() - began
        if event is None:
            self.ended = self.host.ended
        elif event["event"] == "out":
            message = event | {"event": "failure"}
            self.ended = Ended(message=message, status=0, phase="train", seconds=self.seconds)
            event = None
        return event


def mean_pace(players: list[Player]) -> float:
    """Seconds per sample, the geometric mean of all players."""
    return math.exp(math.fsum(math.log(player.pace) for player in players) / len(players))
