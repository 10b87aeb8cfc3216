"""One side of a duet: a runner that is told, from the parent's side, to start, to train a block, to report, to end.

From its start on its process is stopped between any two calls, with all that it has started, so that it takes nothing
from its partner.
"""

from __future__ import annotations

import math
import time
from typing import Any

from autotune.bursts.isolation import Isolation
from autotune.bursts.live import Ended
from autotune.bursts.protocol import BlockEvent, Command, ReadyEvent, Request
from autotune.knobs import TrainConfig
from autotune.measuring import Block, Measurement
from autotune.recorder.gate import FILLS

END_SECONDS = 1.0
"""Kept for the end of each side, which has as much at least: two steps on the largest samples, a look at memory."""
LEAST_SAMPLES, LEAST_BATCHES = 50, 10
"""Of each worker in one block, where reading is waiting: the wait under way when a worker is stopped still ends, half
of one on average, a hundredth of so many samples, a twentieth of so many batches where the data set reads whole ones.
What computes is stopped at once, and needs no more than a batch of each worker."""
HANG_SECONDS, HANG_BLOCKS = 15.0, 30
"""A block hangs when it takes so much longer than so many of its side's blocks before. A neighbour on one of two cores
was measured to make training ten to thirty times as slow: that is no hang."""
LOADER_STARTS = 3
"""A block may take so many starts of its loader longer: an epoch may end in it. Chosen, for busy neighbours."""
COMPILING_SECONDS = 120.0
"""What compiling once more may take in a block, for shapes that none of the first batches had: as for an epoch's last
batch, which is smaller; and compiling at all, at least. Chosen."""
WARMUP_BLOCKS = 4
"""A side that warms up alone does so in as many: the last of them tells how long its blocks should be."""


class Side:
    """A runner, from its start to its end; it begins at once, and `start` must follow.

    Args:
        isolation: Where its process comes from.
        request: What it runs.
        deadline: `time.monotonic()` at which its process must exist.

    Attributes:
        request: What it runs.
        blocks: That it has trained in this duet.
        taken: Share of the CPUs that others took during each of them.
        crossed: Whether an epoch ended in each of them.
        compiled: Whether something was compiled in each of them.
        position: Place in the stream of samples that it was last told to train to, or to begin at.
        epoch_samples: Samples of an epoch; None: endless.
        unit_samples: After which a block may end: those of a micro-batch, or of a step whose batches are drawn first.
        least_samples: Of a block, so that what its workers go on reading while it is stopped hardly counts.
        trained_seconds: In all blocks of its life.
        drained: Whether what its loader had prepared in advance is gone.
        ended: How it ended, once it has.

    Raises:
        TargetError, WorkloadError: The module can no longer be imported.
        IsolationError: No process could be started.
        Interrupted: Asked to end.
    """

    def __init__(self, isolation: Isolation, request: Request, deadline: float) -> None:
        self.request = request
        self.blocks: list[Block] = []
        self.taken: list[float] = []
        self.crossed: list[bool] = []
        self.compiled: list[bool] = []
        self.position = 0
        self.epoch_samples: int | None = None
        self.unit_samples = self.config.micro_batch
        self.least_samples = 0
        self.trained_seconds = 0.0
        self.drained = False
        self.ended: Ended | None = None
        self._isolation = isolation
        self._start: int | None = 0
        self._boundary_per_sample = 0.0
        self._longest_block = 0.0
        self._patience_seconds = HANG_SECONDS
        self._filling_seconds = 0.0
        self._pace = self._opening_pace = 0.0
        self._live = isolation.open(request, max(0.0, deadline - time.monotonic()))

    @property
    def has_started(self) -> bool:
        """Whether `start` would not have to wait."""
        return self._isolation.has_word(self._live)

    @property
    def age_seconds(self) -> float:
        """Since it was asked for."""
        return time.monotonic() - self._live.began

    def start(self, deadline: float) -> None:
        """Waits until it has taken its first steps, or has failed, should it not have done so yet.

        Args:
            deadline: `time.monotonic()` at which it is killed.

        Raises:
            Interrupted: Asked to end.
        """
        if self._pace or not self.stands:
            return
        event = self._told(deadline, deadline)
        if event is not None:
            ready, batch = ReadyEvent.model_validate(event), self.config.micro_batch
            waiting = LEAST_BATCHES * batch if ready.reads_batches else LEAST_SAMPLES * self.config.ranks
            waiting = math.ceil(self.request.sample_wait_fraction * waiting)
            self.least_samples = self.config.num_workers * max(batch, waiting)
            self.epoch_samples = ready.epoch_samples
            self.unit_samples = self.config.effective_batch if ready.draws_ahead else batch
            self._pace = self._opening_pace = ready.pace
            self._filling_seconds = FILLS * (self.config.prefetch_factor or 0) * ready.loader_seconds
            if self.config.num_workers:  # what was there already was trained on without waiting
                self._pace = max(ready.pace, ready.loader_seconds / (self.config.num_workers * batch))
            self._patience_seconds += LOADER_STARTS * ready.loader_seconds
            self._patience_seconds += COMPILING_SECONDS if self.config.compile_mode is not None else 0.0

    @property
    def config(self) -> TrainConfig:
        """What it trains with."""
        return self.request.point.config if self.request.point is not None else TrainConfig()

    @property
    def stands(self) -> bool:
        """Whether it has not ended."""
        return self.ended is None

    @property
    def opening_seconds(self) -> float:
        """That it has trained before its first block, less its very first step, which may do what no later one does."""
        return self._opening_pace * self.config.effective_batch

    @property
    def pace(self) -> float:
        """Seconds of a sample, by its last block in which nothing was compiled, or by its first steps."""
        usual = (block for block, late in zip(reversed(self.blocks), reversed(self.compiled), strict=True) if not late)
        last = next(usual, None)
        return self.per_sample(last) if last is not None else self._pace

    def per_sample(self, block: Block) -> float:
        """Seconds of a sample in a block, its share of epoch boundaries included."""
        return block.seconds / max(1, block.samples) + self._boundary_per_sample

    def seconds_from(self, turn: int) -> float:
        """Of its blocks in this duet from a turn on, but for those in which something was compiled."""
        blocks = zip(self.blocks[turn:], self.compiled[turn:], strict=True)
        return math.fsum(block.seconds for block, compiled in blocks if not compiled)

    def begin(self) -> None:
        """Begins a duet: the blocks of the one before are not its own."""
        self._pace = self.pace
        self.blocks = []
        self.taken = []
        self.crossed = []
        self.compiled = []

    def lead_samples(self, seconds: float) -> int:
        """Samples after which it is warm: so many seconds of training, and until its loader's queue is as in training.

        In whole optimizer steps, or in micro-batches where a step takes longer than that; none where its first steps
        were long enough.
        """
        seconds = max(0.0, seconds - self.opening_seconds)
        pace = max(self._pace, 1e-9)
        wanted = max(seconds / pace, min(self._filling_seconds / pace, self._queue_samples))
        unit = self._unit(wanted)
        return unit * math.ceil(wanted / unit)

    def warm_up(self, position: int, seconds: float, deadline: float) -> None:
        """Trains alone, before its first duet, on the way to the place in the stream of samples where that will begin.

        Args:
            position: That place.
            seconds: That it should train for on the way.
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
        return self.config.num_workers * (self.config.prefetch_factor or 0) * self.config.micro_batch

    def _unit(self, samples: float) -> int:
        """What so many samples are rounded to."""
        step = self.config.effective_batch
        return step if step <= samples else self.unit_samples

    def train(self, position: int, deadline: float, *, leads_in: bool = False) -> None:
        """One block, all others being stopped.

        Args:
            position: Place in the stream of samples to train to.
            deadline: `time.monotonic()` at which it is killed.
            leads_in: Whether it is warm-up, which no measurement holds.
        """
        usual = max(self._longest_block, (position - self.position) * self.pace)
        patience = time.monotonic() + self._patience_seconds + HANG_BLOCKS * usual
        self.position = position
        self._command(Command(start=self._start, until=position, leads_in=leads_in))
        self._start = None
        event = self._told(min(deadline, patience), deadline)
        if event is not None:
            trained = BlockEvent.model_validate(event)
            block = trained.block
            self.blocks.append(block)
            self.taken.append(trained.taken)
            self.crossed.append(trained.crossed)
            self.compiled.append(trained.compiled)
            self.drained = trained.drained
            # Of an iterable data set how long an epoch is shows only at its end.
            epoch = trained.epoch_samples or self.epoch_samples
            self._boundary_per_sample = trained.boundary_seconds / epoch if epoch else 0.0
            if not trained.compiled:
                self.trained_seconds += block.seconds
                self._longest_block = max(self._longest_block, block.seconds)

    def report(self, deadline: float) -> Measurement | None:
        """All blocks of this duet as one measurement; it lives on. None when it ended instead."""
        self._command(Command(report=True))
        event = self._told(deadline, deadline)
        if event is None:
            return None
        self.drained = event["drained"]  # its workers may have gone on meanwhile
        return Measurement.model_validate(event["value"])

    def end(self, deadline: float) -> None:
        """Lets it report what it has measured, and end."""
        self._command(Command())
        self._end(deadline)

    def discard(self) -> None:
        """Kills it, whatever it is doing."""
        if self.stands:
            self._isolation.discard(self._live)
            spent = time.monotonic() - self._live.began
            self.ended = Ended(timed_out=True, phase="warm up", seconds=spent)

    def _command(self, command: Command) -> None:
        self._isolation.command(self._live, command)
        self._live.resume()

    def _told(self, patience: float, deadline: float) -> dict[str, Any] | None:
        """What it says next, after which it is stopped; None when it has ended instead."""
        event = self._isolation.wait(self._live, patience, deadline)
        if event is None:
            self._end(deadline)
            return None
        self._isolation.stop(self._live)
        return event

    def _end(self, deadline: float) -> None:
        self.ended = self._isolation.end(self._live, max(deadline, time.monotonic() + END_SECONDS))


def mean_pace(sides: list[Side]) -> float:
    """Seconds of a sample, the geometric mean of all sides."""
    return math.exp(math.fsum(math.log(side.pace) for side in sides) / len(sides))
