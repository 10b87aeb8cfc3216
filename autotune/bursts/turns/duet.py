"""A duet: players that train the same samples in turn, block by block, in one host or in several.

What the machine does to one block it also does to its partner, so that neighbours, clocks and caches cancel in the
ratio. Bursts one after another are not comparable on a shared machine (Bulej et al., *Duet Benchmarking*, ICPE 2020).
The order is random (Abedi and Brecht, ICPE 2017). While one player trains, the others are stopped with all their
processes.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

from autotune.bursts.hosts.host import END_SECONDS, Host
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.turns.player import Player, mean_pace
from autotune.measuring import Burst, bearable, warm_up_length

TURN_SECONDS, ROUND_TURN_SECONDS, GPU_TURN_SECONDS = 0.06, 0.2, 0.3
"""Length of a player's turn: in the search, in confirmation rounds, and on a GPU. On two shared cores the noise of a
ratio was 1.1 % in turns of 0.05 s. It was 1.4 % in turns of 0.16 s, 1.6 % at 0.35 s and 2.0 % at 0.8 s, over the
same time: neighbours disturb for short times. But each turn finds caches cold, and the faster player loses more by it.
Ten rounds of a small CNN gave 1.38 x in turns of 0.06 s, 1.44 x at 0.15 s and 0.3 s, and 1.45 x at 0.5 s. The search
accepts that for more decisions. A GPU's queue of work runs dry at the end of each turn, so its turns are longer. Not
tuned."""
LONGEST_BLOCK = 5
"""A block is at most this many times as long as planned, whatever number of samples it should have."""
SIZING_TURNS = 2
"""The first turns only show how long a block should be, because first steps are slow. One turn is enough where all
players have trained before: after a pause a player finds its caches cold. So it is where a step takes as long as the
warm-up: a round with steps of 3 s took 38 instead of 43 s."""
RESIZED_TURNS = 2
"""In a shared host a step shows the pace before the first turn. The first blocks correct the size, and all count."""
LEAST_TURNS, LEAST_LONG_TURNS = 5, 3
"""The fewest turns that count in a round: fewer say nothing about their scatter. The second number is for turns so long
that each is as good as several: a round with steps of two seconds took 28 s."""
LEAD_PART, LONGEST_FOR_LEAD_SECONDS = 4, 0.3
"""In a shared host an untimed micro-batch leads each block in. A block takes this many times as long, up to the second
number: a quarter of the time goes into warming caches after a switch. Not tuned. On a CPU, where a block would be
longer, none leads in: steps of a U-Net that took 0.08 to 0.35 s took 0.98 to 1.03 times as long after another model's,
each ± 0.01 to 0.02. While a player is new, one leads in all the same."""
WARMUP_SHARE, ROUND_WARMUP_SHARE = 0.25, 0.5
"""Shortest warm-up, as a share of a player's measuring time: in the search, and in a round. The ratio shows warming up
only within noise. A round's processes are new, and it ends before they are old: kernels are made for each new shape of
a batch, and pages are touched for the first time. Whole runs side by side trained a BERT in bf16 on texts of many
lengths 1.42 x as fast as in fp32. Rounds of 0.5 s gave 1.20 x after 0.125 s of warm-up. Rounds of 1.25 s gave 1.28 x
after 0.3 s and 1.33 x after 1 s. A duet of 12 s gave 1.36 x."""
MOST_WARMUPS = 4
"""Longest warm-up of two players together, in warm-ups of one: a player more than three times as fast would make its
partner train for seconds, since both train the same samples. Not tuned."""
WORST_MICRO_BATCHES = 4
"""Time that is kept for two steps on the largest samples, in micro-batches. Not tuned: samples of twice the size."""
START_SHARE = 0.6
"""Share of the time for a player's start: one that hangs must leave some to see how the others end."""


class Duet:
    """Players that train in turn.

    Args:
        deadline: In `time.monotonic()`.
        seed: Orders the turns.
        ends: How many players end with it.
        turn_seconds: Length of a turn on a CPU, unless the plan sets it.
        warmup_share: Warm-up as a share of a player's measuring time.
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
        self.players: list[Player] = []  # train from the same place in the stream of samples
        self._plan = plan
        self._deadline = deadline
        self._ends = ends
        self._turn_seconds = turn_seconds
        self._warmup_share = warmup_share
        self._rng = random.Random(seed)
        self._warm: dict[Player, int] = {}

    def join(self, player: Player, deadline: float) -> None:
        """Adds a player before the first turn, and waits until it has taken its first steps.

        Args:
            player: A player that has not played yet, or has played in another duet.
            deadline: `time.monotonic()` at which its host is killed.
        """
        self.players.append(player)
        player.frees = self._plan.frees
        player.start(deadline)
        player.begin()

    def warm_up(self) -> None:
        """Lets each player train alone until it is warm; all arrive at the same place in the stream."""
        seconds = self.warm_after
        position = max((player.lead_samples(seconds) for player in self.active), default=0)
        position += self._samples_before()
        for player in self.active:
            player.warm_up(position, seconds, self._deadline)

    @property
    def warm_after(self) -> float:
        """Seconds that a player trains until it counts as warm."""
        return self._warmup_share * self._plan.measure_seconds

    @property
    def standing(self) -> list[Player]:
        """Players that have not ended."""
        return [player for player in self.players if player.stands]

    @property
    def active(self) -> list[Player]:
        """Players that take part in the next turn."""
        return [player for player in self.players if player.stands and not player.decided]

    @property
    def is_broken(self) -> bool:
        """Whether a host ended under players that did nothing wrong."""
        return any(player.is_lost for player in self.players)

    @property
    def is_shared(self) -> bool:
        """Whether several of them play in one host."""
        return len({id(player.host) for player in self.players}) < len(self.players)

    def take_turns(self, enough: Callable[[], bool]) -> None:
        """Plays turns until `enough` says so, time is up, a host ends, or one player is left and has been measured.

        Args:
            enough: Called after each turn that counts for a player.
        """
        position = max((player.position for player in self.players), default=0)
        sizing = self._sizing_turns()
        turns = size = 0
        while self._goes_on(turns) and not (turns > sizing and enough()):
            if turns <= max(sizing, RESIZED_TURNS if self.is_shared else 0):
                leads = {player: self._lead(player) for player in self.active}
                size = self._block_samples()
            position += size
            order = self.active
            self._rng.shuffle(order)
            for player in order:
                player.train(position, self._deadline, lead=leads[player])
                if self.is_broken:
                    return
            turns += 1
            for player in self.active:
                if turns <= sizing or self._is_cold(player):
                    self._warm[player] = turns

    def counted_seconds(self, players: Sequence[Player]) -> float:
        """Seconds that some players have trained in turns that count, without blocks that compiled something."""
        return math.fsum(player.seconds_from(self._warm_turns(players)) for player in players)

    def played_turns(self) -> int:
        """Number of turns that count so far for all standing players: after the warm-up, and without compiling."""
        compiling = _compiling(self.standing)
        turns = min((len(player.blocks) for player in self.standing), default=0)
        return sum(turn not in compiling for turn in range(self._warm_turns(self.standing), turns))

    def counted(self, players: Sequence[Player] | None = None) -> list[int]:
        """Indices of the blocks that count for some players; for all players when None.

        A block does not count if:

        - It is warm-up.
        - Other processes took notably more of a player's CPUs than usual, and not of its partner's.
        - A player compiled, which happens once.
        - A `GradScaler` skipped all steps of a player.

        A player that has failed does not affect the blocks of the others.
        """
        players = self.players if players is None else players
        warm = self._warm_turns(players)
        latest = max((len(player.blocks) for player in players), default=0)
        whole = [p for p in players if len(p.blocks) > warm and (p.decided or len(p.blocks) >= latest - 1)]
        if not whole:
            return []
        played = range(warm, min(len(player.blocks) for player in whole))
        compiling = _compiling(whole)
        turns = [turn for turn in played if turn not in compiling and all(p.blocks[turn].samples for p in whole)]
        shortest = min((player.blocks[turn].seconds for player in whole for turn in turns), default=math.inf)
        taken = [max(player.blocks[turn].taken for player in whole) for turn in turns]
        quiet = [turns[index] for index in bearable(taken, shortest)]
        first, *others = whole
        ratios = [
            [math.log(first.per_sample(first.blocks[turn]) / other.per_sample(other.blocks[turn])) for turn in quiet]
            for other in others
        ]
        return quiet[max(map(warm_up_length, ratios), default=0) :]

    def within_epochs(self, players: Sequence[Player]) -> list[int]:
        """Indices of the blocks that count, without those in which an epoch ended for a player, unless these are most.

        The cost of an epoch's end is charged to all blocks alike, and is known only roughly in the block where it fell.
        """
        counted = self.counted(players)
        crossing = {turn for player in players for turn, block in enumerate(player.blocks) if block.crossed}
        within = [turn for turn in counted if turn not in crossing]
        return within if 2 * len(within) >= len(counted) else counted

    def _sizing_turns(self) -> int:
        long = all(player.opening_seconds >= self.warm_after for player in self.players)
        if any(not player.trained_seconds for player in self.players):
            return 1 if long else SIZING_TURNS
        return 0 if self.is_shared or long else 1  # where a step leads in, or takes as long as the warm-up

    def _warm_turns(self, players: Sequence[Player]) -> int:
        return max((self._warm.get(player, 0) for player in players), default=0)

    def _goes_on(self, turns: int) -> bool:
        """Whether there is another turn: while two players are active, or one that is not yet measured."""
        active = self.active
        alone = len(active) < 2 and len(self.players) > 1
        if not active or self.is_broken or (alone and turns - self._warm_turns(active) >= LEAST_TURNS):
            return False
        if alone and any(player.decided for player in self.players):
            return False
        usual = math.fsum(player.seconds_from(0) for player in active) / max(1, turns)
        return time.monotonic() + usual < self._deadline - self._ending_seconds

    @property
    def _ending_seconds(self) -> float:
        """Time for the ends of its players; a step on the largest samples may take much longer than others."""
        sized = [player for player in self.standing if player.request.largest_samples]
        worst = (WORST_MICRO_BATCHES * player.pace * player.config.micro_batch for player in sized)
        return END_SECONDS * self._ends + math.fsum(max(0.0, seconds - END_SECONDS) for seconds in worst)

    def _is_cold(self, player: Player) -> bool:
        patience = MOST_WARMUPS * self.warm_after
        of_all = math.fsum(other.trained_seconds for other in self.active)
        trained = player.trained_seconds + player.opening_seconds
        return not player.drained or (trained < self.warm_after and of_all < patience)

    def _block_samples(self) -> int:
        """Samples of a block: whole optimizer steps of all players if short, whole epochs if those are short."""
        players, epoch = self.active, self._epoch_samples
        least = max((1 + self._lead(player)) * player.unit_samples for player in players)
        samples, shorter = map(self._turn_samples, (self._turn_seconds, TURN_SECONDS))
        if epoch is not None and 2 * shorter < epoch <= 2 * samples:  # prefer blocks within an epoch to longer turns
            samples = shorter
        steps = [player.config.effective_batch for player in players]
        micro_steps = [player.unit_samples for player in players]
        # Parts of a step where it takes longer than a turn. The same samples are worth a longer block: some may be much
        # larger than others. Only where batch sizes have little in common, players train about as many.
        step, common, batch = math.lcm(*steps), math.lcm(*micro_steps), max(micro_steps)
        in_common = common if common <= LONGEST_BLOCK * max(samples, batch) else batch
        unit = step if step <= 2 * samples else in_common
        # Workers that start together each deliver a batch at about the same time. With blocks of whole rounds, each
        # block holds the same number of batches.
        rounds = math.lcm(unit, *(max(1, player.config.num_workers) * player.unit_samples for player in players))
        unit = rounds if rounds <= samples else unit
        if epoch is not None and epoch <= 2 * samples:
            unit = epoch
        return unit * max(1, round(samples / unit), math.ceil(least / unit))

    def _samples_before(self) -> int:
        """The plan's share of an epoch, in whole steps of all players; 0 if epochs are short or not known."""
        players, epoch = self.active, self._epoch_samples
        if epoch is None:
            return 0
        if epoch * mean_pace(players) <= self._plan.measure_seconds:
            return 0
        step = math.lcm(*(player.config.effective_batch for player in players))
        return step * int(self._plan.epoch_share * epoch / step)

    @property
    def _epoch_samples(self) -> int | None:
        """Samples of an epoch; None unless it is known and the same for all.

        An incomplete last batch, which compiled players drop, makes no difference: their places skip it.
        """
        epochs = [player.epoch_samples for player in self.active]
        known_epochs = [epoch for epoch in epochs if epoch is not None]
        if not epochs or len(known_epochs) < len(epochs):
            return None
        longest = max(known_epochs)
        return longest if longest - min(known_epochs) < max(player.unit_samples for player in self.active) else None

    @property
    def _lead_seconds(self) -> float:
        """The longest lead of all players."""
        return max(player.pace * player.config.micro_batch for player in self.active)

    def _lead(self, player: Player) -> int:
        """Micro-batches that lead a block in: as many as get freed memory back, or one where a queue is empty."""
        if self._plan.frees:
            return player.reclaiming_batches
        if self.active[0].request.device in {"cuda", "rocm"}:
            return 1
        is_new = any(not player.trained_seconds for player in self.active)
        is_long = self.active[0].request.device == "cpu" and LEAD_PART * self._lead_seconds > LONGEST_FOR_LEAD_SECONDS
        return int(self.is_shared and (is_new or not is_long))

    def _turn_samples(self, cpu_turn_seconds: float) -> float:
        """Samples of a turn, before rounding to whole units of all players."""
        players = self.active
        usual = cpu_turn_seconds if players[0].request.device == "cpu" else GPU_TURN_SECONDS
        turn_seconds = self._plan.turn_seconds or usual
        if self.is_shared:
            turn_seconds = max(turn_seconds, min(LEAD_PART * self._lead_seconds, LONGEST_FOR_LEAD_SECONDS))
        samples = min(turn_seconds, self._plan.measure_seconds / LEAST_TURNS) / mean_pace(players)
        return max(samples, min(max(player.least_samples for player in players), LONGEST_BLOCK * samples))


def _compiling(players: Sequence[Player]) -> set[int]:
    """The turns in which any of the players compiled something."""
    return {turn for player in players for turn, block in enumerate(player.blocks) if block.compiled}


def play_round(
    isolation: Isolation,
    requests: Sequence[Request],
    plan: BurstPlan,
    deadline: float,
    seed: int,
    *,
    in_one_host: bool = False,
) -> list[Burst]:
    """Starts a host for each request, lets all train in turn for the planned time, and ends them.

    A player that fails is out, and the others continue. Hosts start in random order: the first one shares fewer pages
    with others, and is the oldest. The deadline is by `time.monotonic()`. With `in_one_host`, players that can share a
    host do, for want of memory for two.

    Raises:
        TargetError, WorkloadError: The module can no longer be imported.
        IsolationError: No process could be started.
        Interrupted: Asked to end.
    """
    players: dict[int, Player] = {}
    duet = Duet(plan, deadline, seed, len(requests), turn_seconds=ROUND_TURN_SECONDS, warmup_share=ROUND_WARMUP_SHARE)

    def enough() -> bool:
        planned = len(duet.standing) * plan.measure_seconds
        turns, seconds = duet.played_turns(), duet.counted_seconds(duet.standing)
        long = turns >= LEAST_LONG_TURNS and seconds >= LEAST_TURNS * planned
        return long or (turns >= LEAST_TURNS and seconds >= planned)

    try:
        for index in random.Random(seed).sample(range(len(requests)), len(requests)):
            start_seconds = START_SHARE * max(0.0, deadline - time.monotonic()) if len(requests) > 1 else math.inf
            latest = min(deadline, time.monotonic() + start_seconds)
            hosts = [player.host for player in players.values() if in_one_host and player.host.stands]
            host = next((host for host in hosts if host.can_play(requests[index])), None)
            host = host or Host(isolation, requests[index], latest)
            players[index] = Player(host, requests[index])
            duet.join(players[index], latest)
        duet.warm_up()
        duet.take_turns(enough)
        for player in duet.standing:
            if player.blocks and player.host.stands:
                player.report(deadline, leaves=True)
        for player in duet.players if not duet.standing else ():
            player.host.end(deadline)
    finally:
        for player in duet.players:  # none may stay behind, stopped
            player.host.discard()
            player.ended = player.ended or player.host.ended
    turns = duet.counted()
    return [players[index].burst(turns) for index in range(len(requests))]
