"""A duet: configs that live side by side and train the same samples in turn, block by block.

What the machine does to one block it does to its partner: neighbours, clocks and caches cancel in the ratio, where
bursts one after another are not comparable on a shared machine (Bulej et al., *Duet Benchmarking*, ICPE 2020; Abedi and
Brecht, ICPE 2017, for the random order). While one trains, the others are stopped with all their processes.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.bursts.isolation import Isolation
from autotune.bursts.live import Ended, Live
from autotune.bursts.protocol import BurstPlan, Command, Request
from autotune.knobs import TrainConfig
from autotune.measuring import Block, warm_up_length

BURST_BLOCKS, WANTED_BLOCKS = 2, 10
"""A turn is so many blocks of a burst, 0.3 s, so that caches that a block finds cold cost it little; but where a side
trains for a short time only, it still has so many blocks."""
LEAST_BATCHES = 10
"""Of a loader with workers in one block: a worker that ends its batch while it should be stopped is then a tenth."""
LONGEST_BLOCK = 5
"""A block is at most so many times as long as planned, however many batches it should have."""
SIZING_TURNS = 2
"""The first turns only tell how long a block should be: first steps are slow, and tell it badly."""
LEAST_TURNS = 5
"""Of those that count: fewer say nothing about how they scatter."""
WARMUP_SHARE = 0.25
"""Of what a side is to train at all, at least: what the ratio shows of warming up, it shows only within noise."""
START_SHARE = 0.6
"""Of what time there is, for the start of a side: one that hangs must leave some to see how the others end."""
END_SECONDS = 1.0
"""Kept for the end of each side, which has as much at least: two steps on the largest samples, a look at memory."""
HANG_SECONDS, HANG_BLOCKS = 15.0, 30
"""A block hangs when it takes so much longer than so many of its side's blocks before. A neighbour on one of two cores
was measured to make training ten to thirty times as slow: that is no hang."""


@dataclass(eq=False)
class Side:
    """One config in a duet.

    Attributes:
        live: Its process.
        request: What it runs.
        blocks: That it has trained so far.
        boundary_seconds: What an epoch's end costs, as far as is known.
        epoch_samples: Samples of an epoch; None: endless.
        step_seconds: Of its first steps.
        drained: Whether what its loader had prepared in advance is gone.
        ended: How it ended, once it has.
    """

    live: Live
    request: Request
    blocks: list[Block] = field(default_factory=list)
    boundary_seconds: float = 0.0
    epoch_samples: int | None = None
    step_seconds: float = 0.0
    drained: bool = False
    ended: Ended | None = None

    @property
    def config(self) -> TrainConfig:
        """What it trains with."""
        return self.request.point.config if self.request.point is not None else TrainConfig()

    @property
    def trained_seconds(self) -> float:
        """In all blocks so far."""
        return math.fsum(block.seconds for block in self.blocks)

    def seconds_per_sample(self, block: Block) -> float:
        """Of a block, its share of epoch boundaries included."""
        boundary = self.boundary_seconds / self.epoch_samples if self.epoch_samples else 0.0
        return block.seconds / max(1, block.samples) + boundary

    @property
    def pace(self) -> float:
        """Seconds of a sample, by the last block; by the first steps before there is one."""
        if self.blocks:
            return self.seconds_per_sample(self.blocks[-1])
        return self.step_seconds / self.config.effective_batch


@dataclass(frozen=True)
class Played:
    """What came of a duet.

    Attributes:
        ended: How each side ended, in the order in which they were asked for.
        warm: Blocks at the beginning of each side that do not count: it was warming up.
    """

    ended: tuple[Ended, ...]
    warm: int


class Duet:
    """Plays one duet.

    Args:
        isolation: Where processes come from.
        plan: How long each side trains, and how long a block is.
        deadline: `time.monotonic()` at which all is over.
        seed: Of the order within the turns.
    """

    def __init__(self, isolation: Isolation, plan: BurstPlan, deadline: float, seed: int) -> None:
        self._isolation = isolation
        self._plan = plan
        self._deadline = deadline
        self._rng = random.Random(seed)
        self._sides: list[Side] = []
        self._warm = 0

    def play(self, requests: Sequence[Request]) -> Played:
        """Starts a runner for each request, lets them train in turn, and ends them.

        A side that fails is out, and the others go on.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
            IsolationError: No process could be started.
            Interrupted: Asked to end.
        """
        try:
            for request in requests:
                self._start(request)
            self._take_turns()
            for side in self._standing:
                if side.blocks:
                    self._isolation.command(side.live, Command())
                    side.live.resume()
                    self._end(side)
        finally:
            for side in self._standing:  # none may be left, stopped as it is
                self._isolation.discard(side.live)
                side.ended = Ended(timed_out=True, phase="warm up", seconds=time.monotonic() - side.live.began)
        return Played(tuple(side.ended for side in self._sides if side.ended is not None), self._warm_blocks())

    @property
    def _standing(self) -> list[Side]:
        return [side for side in self._sides if side.ended is None]

    def _start(self, request: Request) -> None:
        """Starts a runner, waits until it has taken its first steps, and stops it."""
        left = START_SHARE * max(0.0, self._deadline - time.monotonic())
        side = Side(self._isolation.open(request, left), request)
        self._sides.append(side)
        ready = self._isolation.wait(side.live, time.monotonic() + left)
        if ready is None:
            self._end(side)
            return
        side.epoch_samples, side.step_seconds = ready["epoch_samples"], ready["step_seconds"]
        self._isolation.stop(side.live)

    def _take_turns(self) -> None:
        """Turns, until each side has trained as long as was planned, or time is up."""
        position = turns = size = 0
        while self._goes_on(turns):
            if turns <= SIZING_TURNS:
                size = self._block_samples()
            position += size
            order = self._standing
            self._rng.shuffle(order)
            for side in order:
                self._train(side, position, size)
            turns += 1
            if turns <= SIZING_TURNS or any(self._is_cold(side) for side in self._standing):
                self._warm = turns

    def _goes_on(self, turns: int) -> bool:
        """Whether there is another turn: while two sides stand, or one that has shown nothing yet."""
        standing = self._standing
        if not standing or (len(standing) < 2 and turns - self._warm >= LEAST_TURNS):
            return False
        usual = math.fsum(side.trained_seconds for side in standing) / max(1, turns)
        if time.monotonic() + usual > self._deadline - END_SECONDS * len(standing):
            return False
        if turns - self._warm < LEAST_TURNS:
            return True
        counted = math.fsum(block.seconds for side in standing for block in side.blocks[self._warm :])
        return counted < len(standing) * self._plan.measure_seconds

    def _is_cold(self, side: Side) -> bool:
        least = WARMUP_SHARE * (self._plan.warmup_seconds + self._plan.measure_seconds)
        return not side.drained or side.trained_seconds < least

    def _block_samples(self) -> int:
        """Samples of a block: whole optimizer steps of all sides, whole epochs where they are short."""
        sides = self._standing
        pace = math.exp(math.fsum(math.log(side.pace) for side in sides) / len(sides))
        turn_seconds = min(BURST_BLOCKS * self._plan.block_seconds, self._plan.measure_seconds / WANTED_BLOCKS)
        wanted = turn_seconds / pace
        batches = max((LEAST_BATCHES * side.config.batch_size for side in sides if side.config.num_workers), default=0)
        wanted = max(wanted, min(batches, LONGEST_BLOCK * wanted))
        steps = [side.config.effective_batch for side in sides]
        unit = math.lcm(*steps)
        if unit > 2 * wanted:  # of freed effective batches: then blocks have about as many samples
            unit = max(steps)
        epochs = {side.epoch_samples for side in sides}
        epoch = epochs.pop() if len(epochs) == 1 else None
        if epoch is not None and epoch <= 2 * wanted:
            unit = epoch
        return unit * max(1, round(wanted / unit))

    def _train(self, side: Side, position: int, samples: int) -> None:
        """One block of one side, all others being stopped."""
        self._isolation.command(side.live, Command(until=position))
        side.live.resume()
        usual = max((block.seconds for block in side.blocks), default=samples * side.pace)
        patience = time.monotonic() + HANG_SECONDS + HANG_BLOCKS * usual
        event = self._isolation.wait(side.live, min(self._deadline, patience))
        if event is None:
            self._end(side)
            return
        self._isolation.stop(side.live)
        side.blocks.append(Block.model_validate(event["block"]))
        side.boundary_seconds, side.drained = event["boundary_seconds"], event["drained"]

    def _end(self, side: Side) -> None:
        side.ended = self._isolation.end(side.live, max(self._deadline, time.monotonic() + END_SECONDS))

    def _warm_blocks(self) -> int:
        """Blocks that do not count: those trained before all were warm, and what the ratios show to be no part yet."""
        whole = [side for side in self._sides if len(side.blocks) > self._warm + 1]
        if len(whole) < 2:
            return self._warm
        first, *others = whole
        cuts = []
        for other in others:
            pairs = zip(first.blocks[self._warm :], other.blocks[self._warm :], strict=False)
            ratios = [math.log(first.seconds_per_sample(a) / other.seconds_per_sample(b)) for a, b in pairs]
            cuts.append(warm_up_length(ratios))
        return self._warm + max(cuts)
