"""A duet: configs that live side by side and train the same samples in turn, block by block.

What the machine does to one block it does to its partner: neighbours, clocks and caches cancel in the ratio, where
bursts one after another are not comparable on a shared machine (Bulej et al., *Duet Benchmarking*, ICPE 2020; Abedi and
Brecht, ICPE 2017, for the random order). While one trains, the others are stopped with all their processes.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.bursts.isolation import Isolation
from autotune.bursts.live import Ended
from autotune.bursts.protocol import BurstPlan, Request
from autotune.bursts.side import END_SECONDS, Side, mean_pace
from autotune.measuring import bearable, warm_up_length

TURN_SECONDS, ROUND_TURN_SECONDS, GPU_TURN_SECONDS = 0.06, 0.2, 0.3
"""Of a side: while searching, in the rounds that confirm, and on a GPU. On two shared cores the noise of a ratio over
the same time was 1.1 % in turns of 0.05 s, 1.4 % of 0.16 s, 1.6 % of 0.35 s and 2.0 % of 0.8 s: what a neighbour does
is short. But each turn finds caches cold, which costs the faster side the larger share: of a small CNN ten rounds each
said 1.38 x in turns of 0.06 s, 1.44 x of 0.15 s and of 0.3 s, and 1.45 x of 0.5 s. A search bears that for more
decisions. A GPU's queue of work runs dry at the end of each turn, which must be small beside it (chosen)."""
LONGEST_BLOCK = 5
"""A block is at most so many times as long as planned, however many samples it should have."""
SIZING_TURNS = 2
"""The first turns only tell how long a block should be: first steps are slow, and tell it badly. One is enough where
all have trained before: whoever stood still for a while finds its caches cold."""
LEAST_TURNS, LEAST_LONG_TURNS = 5, 3
"""Of those that count in a round, which nobody looks at before its end: fewer say nothing about how they scatter. The
second holds where they take so long that each is as good as several: a round of steps of two seconds took 28 s."""
WARMUP_SHARE, ROUND_WARMUP_SHARE = 0.25, 0.5
"""Of what a side is to be measured, at least: what the ratio shows of warming up, it shows only within noise. A round's
processes are new, and it ends before they are old: kernels are made for each shape of a batch that is met for the first
time, and pages are touched. Of a BERT in bf16 on texts of many lengths, which whole runs side by side trained 1.42 x as
fast as in fp32, rounds of 0.5 s after 0.125 s said 1.20 x, of 1.25 s after 0.3 s 1.28 x and after 1 s 1.33 x, and a
duet of 12 s 1.36 x."""
MOST_WARMUPS = 4
"""So many warm-ups in all are enough for two sides: one that is more than three times as fast would have its partner
train for seconds, since both train the same samples. Chosen."""
START_SHARE = 0.6
"""Of what time there is, for the start of a side: one that hangs must leave some to see how the others end."""


@dataclass(frozen=True)
class Played:
    """What came of a duet.

    Attributes:
        ended: How each side ended, in the order in which they were asked for.
        counted: Which of each side's blocks count.
    """

    ended: tuple[Ended, ...]
    counted: list[int]


class Duet:
    """Some sides that train in turn.

    Args:
        plan: How long each side trains, and how long a block is.
        deadline: `time.monotonic()` at which all is over.
        seed: Of the order within the turns.
        ends: How many sides end with it.
        turn_seconds: Of a side on a CPU, unless the plan says.
        warmup_share: Of what a side is to be measured, that it trains before.

    Attributes:
        sides: Who plays; all train from the same place in the stream of samples on.
        warm: Turns at the beginning that do not count: blocks were being sized, or a side was cold.
    """

    def __init__(
        self,
        plan: BurstPlan,
        deadline: float,
        seed: int,
        ends: int,
        *,
        turn_seconds: float = TURN_SECONDS,
        warmup_share: float = WARMUP_SHARE,
    ) -> None:
        self.sides: list[Side] = []
        self.warm = 0
        self._plan = plan
        self._deadline = deadline
        self._ends = ends
        self._turn_seconds = turn_seconds
        self._warmup_share = warmup_share
        self._rng = random.Random(seed)

    def join(self, side: Side, deadline: float) -> None:
        """Takes a side in, before the first turn, and waits until it has taken its first steps.

        Args:
            side: One that has not played yet, or in another duet.
            deadline: `time.monotonic()` at which it is killed.
        """
        self.sides.append(side)
        side.start(deadline)
        side.begin()

    def warm_up(self) -> None:
        """Lets each side train alone for as long as it needs to be warm: all come to one place in the stream."""
        seconds = self.warm_after
        position = max((side.lead_samples(seconds) for side in self.standing), default=0)
        for side in self.standing:
            side.warm_up(position, seconds, self._deadline)

    @property
    def warm_after(self) -> float:
        """Seconds that a side trains until it counts as warm."""
        return self._warmup_share * self._plan.measure_seconds

    @property
    def standing(self) -> list[Side]:
        """Sides that have not ended."""
        return [side for side in self.sides if side.stands]

    def take_turns(self, enough: Callable[[int], bool]) -> None:
        """Turns, until it is enough, time is up, or a side stands alone that has shown something.

        Args:
            enough: Told after each turn how many count so far.
        """
        position = max((side.position for side in self.sides), default=0)
        sizing = SIZING_TURNS if any(not side.trained_seconds for side in self.sides) else 1
        if all(side.opening_seconds >= self.warm_after for side in self.sides):
            sizing = 0  # steps so long that a block is one of them
        turns = size = 0
        while self._goes_on(turns) and not ((played := self._played_turns(turns)) and enough(played)):
            if turns <= sizing:
                size = self._block_samples()
            position += size
            order = self.standing
            self._rng.shuffle(order)
            for side in order:
                side.train(position, self._deadline)
            turns += 1
            if turns <= sizing or any(self._is_cold(side) for side in self.standing):
                self.warm = turns

    def counted_seconds(self) -> float:
        """That all sides have trained in turns that count, but for what was compiled in them."""
        return math.fsum(side.seconds_from(self.warm) for side in self.standing)

    def _played_turns(self, turns: int) -> int:
        """Of so many turns those that count so far: after the warm-up, and nothing was compiled in them."""
        compiling = _compiling(self.standing)
        return sum(turn not in compiling for turn in range(self.warm, turns))

    def counted(self) -> list[int]:
        """Which blocks count.

        Not those trained before all were warm, nor what the ratios show to be warm-up still; nor those in which
        somebody else took notably more of the CPUs than usual from a side: its partner was spared it; nor those in
        which a side compiled something, once and for all; nor those of which no sample counts for a side, whose steps
        were all skipped by a `GradScaler`. A side that has failed takes no blocks of the others along.
        """
        latest = max((len(side.blocks) for side in self.sides), default=0)
        whole = [side for side in self.sides if len(side.blocks) > self.warm and len(side.blocks) >= latest - 1]
        if not whole:
            return []
        played = range(self.warm, min(len(side.blocks) for side in whole))
        compiling = _compiling(whole)
        turns = [turn for turn in played if turn not in compiling and all(side.blocks[turn].samples for side in whole)]
        shortest = min((side.blocks[turn].seconds for side in whole for turn in turns), default=math.inf)
        taken = [max(side.taken[turn] for side in whole) for turn in turns]
        quiet = [turns[index] for index in bearable(taken, shortest)]
        first, *others = whole
        ratios = [
            [math.log(first.per_sample(first.blocks[turn]) / other.per_sample(other.blocks[turn])) for turn in quiet]
            for other in others
        ]
        return quiet[max(map(warm_up_length, ratios), default=0) :]

    def within_epochs(self) -> list[int]:
        """Which blocks count, but for those in which an epoch ended for a side, unless that is most of them.

        What an epoch's end costs is charged to all blocks alike, and known but roughly in the one that it fell into.
        """
        counted = self.counted()
        crossing = {turn for side in self.sides for turn, crossed in enumerate(side.crossed) if crossed}
        within = [turn for turn in counted if turn not in crossing]
        return within if 2 * len(within) >= len(counted) else counted

    def _goes_on(self, turns: int) -> bool:
        """Whether there is another turn: while two sides stand, or one that has shown nothing yet."""
        standing = self.standing
        alone = len(standing) < 2 and len(self.sides) > 1
        if not standing or (alone and turns - self.warm >= LEAST_TURNS):
            return False
        usual = math.fsum(side.seconds_from(0) for side in standing) / max(1, turns)
        return time.monotonic() + usual < self._deadline - END_SECONDS * self._ends

    def _is_cold(self, side: Side) -> bool:
        patience = MOST_WARMUPS * self.warm_after
        of_all = math.fsum(one.trained_seconds for one in self.standing)
        trained = side.trained_seconds + side.opening_seconds
        return not side.drained or (trained < self.warm_after and of_all < patience)

    def _block_samples(self) -> int:
        """Samples of a block: whole optimizer steps of all sides if they are short, whole epochs where those are."""
        sides = self.standing
        epochs = {side.epoch_samples for side in sides}
        epoch = epochs.pop() if len(epochs) == 1 else None
        wanted = self._wanted_samples(self._turn_seconds)
        if epoch is not None and epoch <= 2 * wanted:  # not longer turns at the price of blocks within an epoch
            wanted = self._wanted_samples(TURN_SECONDS)
        steps = [side.config.effective_batch for side in sides]
        micro_steps = [side.unit_samples for side in sides]
        # Parts of a step where it takes longer than a turn. The same samples are worth a longer block, some may be much
        # larger than others; only where batches have little in common it is about as many.
        step, common, batch = math.lcm(*steps), math.lcm(*micro_steps), max(micro_steps)
        in_common = common if common <= LONGEST_BLOCK * max(wanted, batch) else batch
        unit = step if step <= 2 * wanted else in_common
        if epoch is not None and epoch <= 2 * wanted:
            unit = epoch
        return unit * max(1, round(wanted / unit))

    def _wanted_samples(self, cpu_turn_seconds: float) -> float:
        """Samples of a turn, before they are rounded to what all sides train as a whole."""
        sides = self.standing
        usual = cpu_turn_seconds if sides[0].request.device == "cpu" else GPU_TURN_SECONDS
        turn_seconds = self._plan.turn_seconds or usual
        wanted = min(turn_seconds, self._plan.measure_seconds / LEAST_TURNS) / mean_pace(sides)
        return max(wanted, min(max(side.least_samples for side in sides), LONGEST_BLOCK * wanted))


def _compiling(sides: Sequence[Side]) -> set[int]:
    """The turns in which one of some sides compiled something."""
    return {turn for side in sides for turn, compiled in enumerate(side.compiled) if compiled}


def play_round(
    isolation: Isolation, requests: Sequence[Request], plan: BurstPlan, deadline: float, seed: int
) -> Played:
    """Starts a side for each request, lets all train in turn for as long as is planned, and ends them.

    A side that fails is out, and the others go on. They start in random order: who starts first shares fewer pages with
    others, and is the oldest.

    Args:
        isolation: Where processes come from.
        requests: What to run.
        plan: How long each side trains.
        deadline: `time.monotonic()` at which all is over.
        seed: Of the order of the starts and within the turns.

    Raises:
        TargetError, WorkloadError: The module can no longer be imported.
        IsolationError: No process could be started.
        Interrupted: Asked to end.
    """
    sides: dict[int, Side] = {}
    duet = Duet(plan, deadline, seed, len(requests), turn_seconds=ROUND_TURN_SECONDS, warmup_share=ROUND_WARMUP_SHARE)

    def enough(turns: int) -> bool:
        planned = len(duet.standing) * plan.measure_seconds
        seconds = duet.counted_seconds()
        long = turns >= LEAST_LONG_TURNS and seconds >= LEAST_TURNS * planned
        return long or (turns >= LEAST_TURNS and seconds >= planned)

    try:
        for index in random.Random(seed).sample(range(len(requests)), len(requests)):
            left = START_SHARE * max(0.0, deadline - time.monotonic())
            latest = time.monotonic() + left
            sides[index] = Side(isolation, requests[index], latest)
            duet.join(sides[index], latest)
        duet.warm_up()
        duet.take_turns(enough)
        for side in duet.standing:
            if side.blocks:
                side.end(deadline)
    finally:
        for side in duet.sides:  # none may be left, stopped as it is
            side.discard()
    ended = (sides[index].ended for index in range(len(requests)))
    return Played(tuple(one for one in ended if one is not None), duet.counted())
