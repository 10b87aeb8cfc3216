"""The incumbent, and the candidates that play against it in the same turns.

One host plays all that can share a process; a player that needs a new process gets its own host. A clear loser costs
its first steps and a few blocks. When a host ends, the player that was training is out, and the others begin again in a
new host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from autotune.bursts.hosts.host import END_SECONDS, Host
from autotune.bursts.hosts.isolation import Isolation
from autotune.bursts.hosts.protocol import BurstPlan, Request
from autotune.bursts.turns.duet import START_SHARE, Duet
from autotune.bursts.turns.player import Player
from autotune.measuring import Burst, Pair, Point, Scatter, pair_of

PLAYING_TURNS = 3
"""Time that is kept for playing while a candidate starts, in multiples of a player's measuring time: warming up and
sizing blocks take turns as well."""
SEAT_SHARE = 0.4
"""The share of a challenge's time for first steps. Candidates that would begin later do not play. Not tuned."""
PROMISING = 3
"""An undecided candidate that would take the incumbent's place plays this many times as long: all later candidates are
measured against it, and a lucky one spoils their figures. Not tuned."""


class Contest:
    """Keeps hosts and players alive between challenges.

    Args:
        isolation: Where processes come from.
        seed: Seed of the order within turns.
    """

    def __init__(self, isolation: Isolation, seed: int) -> None:
        self._isolation = isolation
        self._seed = seed
        self._count = 0
        self._players: list[Player] = []  # those that live on
        self._scatter = Scatter()

    def challenge(
        self,
        incumbent: Request | None,
        candidates: Sequence[Request],
        plan: BurstPlan,
        deadline: float,
        on_pair: Callable[[Point, Pair], None],
    ) -> list[tuple[Burst, Pair | None]]:
        """Plays as `autotune.bursts.runner.Runner.challenge` says, until `time.monotonic()` reaches the deadline.

        Starts the incumbent if it does not live.

        Returns:
            The burst of each candidate, in order, with the time that it has cost by itself; and its speed over the
            incumbent's. If the first ones take too long to begin, the last ones do not play, and are missing.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
            IsolationError: No process could be started.
            Interrupted: Asked to end.
        """
        self._count += 1
        match = _Match(self._isolation, self._living(incumbent), incumbent, candidates, plan, deadline)
        try:
            match.play(self._seed + self._count, lambda: self._enough(match, plan, on_pair))
            results = self._settled(match, plan)
        except BaseException:
            match.discard()
            self.close()
            raise
        return results

    def close(self) -> None:
        """Ends all that lives on."""
        players, self._players = self._players, []
        for player in players:
            player.host.discard()

    def _living(self, incumbent: Request | None) -> Player | None:
        """The incumbent's player, if it lives; all others leave."""
        kept = next((p for p in self._players if incumbent is not None and _is_same(p, incumbent)), None)
        for player in self._players:
            if player is not kept:
                if kept is None or player.host is not kept.host:
                    player.host.discard()
                else:
                    player.report(time.monotonic() + END_SECONDS, leaves=True)
        self._players = [kept] if kept is not None and kept.stands else []
        return self._players[0] if self._players else None

    def _enough(self, match: _Match, plan: BurstPlan, on_pair: Callable[[Point, Pair], None]) -> bool:
        """Whether each candidate is decided, or has spent the plan's time; passes each pair to `on_pair`.

        A candidate with too few blocks plays on: where steps are slow, or many workers wait, blocks are long, and one
        of twice the speed would be dropped.
        """
        for player in match.candidates:
            if player.stands and not player.decided:
                pair, seconds = self._pair(match, player), plan.measure_seconds
                if pair is not None:
                    on_pair(player.request.point, pair)
                    if plan.fastest_wins and pair.too_few:
                        continue
                    player.decided = plan.fastest_wins and pair.decided
                    if plan.fastest_wins and pair.promotes:
                        seconds *= PROMISING
                playing = [player] if match.incumbent is None else [match.incumbent, player]
                player.decided |= match.duet.counted_seconds(playing) >= len(playing) * seconds
        return all(player.decided or not player.stands for player in match.candidates)

    def _settled(self, match: _Match, plan: BurstPlan) -> list[tuple[Burst, Pair | None]]:
        """The result of each candidate; those that may be the next incumbent live on."""
        results = []
        stays = [match.incumbent] if match.incumbent is not None and match.incumbent.stands else []
        for player in match.candidates:
            pair = self._pair(match, player)
            turns = match.duet.counted(match.beside(player))
            if pair is not None and match.incumbent is not None:
                self._scatter.add(*_seconds(match.duet, match.incumbent, player))
            promoted = plan.fastest_wins and pair is not None and pair.promotes
            if player.stands and player.blocks and (promoted or match.incumbent is None):
                player.report(match.deadline, leaves=False)
                stays += [player] if player.stands else []
            elif player.stands and player.host.stands:
                player.report(match.deadline, leaves=True)
            burst = player.burst(turns).model_copy(update={"seconds": player.seconds})
            results.append((burst, pair if burst.ok else None))
        kept = {id(player.host) for player in stays}
        for player in match.candidates:
            if id(player.host) not in kept:
                player.host.discard()
        self._players = stays
        return results

    def _pair(self, match: _Match, player: Player) -> Pair | None:
        """A candidate's speed over the incumbent's, by the turns that count so far."""
        if match.incumbent is None or not player.blocks:
            return None
        return pair_of(match.incumbent.request.point, *_seconds(match.duet, match.incumbent, player), self._scatter)


class _Match:
    """One challenge: which player plays in which host.

    Attributes:
        duet: The duet that they play; a new one after a host has ended.
        incumbent: What the candidates play against, if there is one.
        candidates: The candidates, in order.
        deadline: `time.monotonic()` at which the challenge ends.
    """

    def __init__(
        self,
        isolation: Isolation,
        living: Player | None,
        incumbent: Request | None,
        candidates: Sequence[Request],
        plan: BurstPlan,
        deadline: float,
    ) -> None:
        self.incumbent: Player | None = living
        self.candidates: list[Player] = []
        self.deadline = deadline
        self._isolation = isolation
        self._incumbent_request, self._requests = incumbent, candidates
        self._plan = plan
        self._hosts: list[Host] = [living.host] if living is not None else []
        self.duet = Duet(plan, deadline, 0, ends=1)

    def play(self, seed: int, enough: Callable[[], bool]) -> None:
        """Seats all players and lets them take turns; if a host ends, begins again without the player that trained."""
        while True:
            self.duet = Duet(self._plan, self.deadline, seed, ends=1)
            if self._seat_all():
                self.duet.take_turns(enough)
                if not self.duet.is_broken:
                    return
            if time.monotonic() >= _latest_start(self._plan, self.deadline):
                return

    def beside(self, player: Player) -> list[Player]:
        """A candidate and what it plays against."""
        return [player] if self.incumbent is None else [self.incumbent, player]

    def discard(self) -> None:
        """Kills all hosts."""
        for host in self._hosts:
            host.discard()

    def _seat_all(self) -> bool:
        """Lets each player that can still play take its first steps; returns False if a host ended meanwhile."""
        latest = _latest_start(self._plan, self.deadline)
        if self._incumbent_request is not None and (self.incumbent is None or self.incumbent.is_lost):
            self.incumbent = self._seated(self._incumbent_request)
        if self.incumbent is not None and self.incumbent.stands:
            self.duet.join(self.incumbent, latest)
        begun = time.monotonic()
        for number, request in enumerate(self._requests):
            earlier = self.candidates[number] if number < len(self.candidates) else None
            if earlier is None or earlier.is_lost:
                player = self._seated(request)
                player.seconds += earlier.seconds if earlier is not None else 0.0
                self.candidates[number : number + 1] = [player]
            player = self.candidates[number]
            if not player.stands:
                self.duet.players.append(player)
                continue
            self.duet.join(player, _latest_start(self._plan, self.deadline))
            if self.duet.is_broken:
                return False
            is_late = time.monotonic() > begun + SEAT_SHARE * (self.deadline - begun)
            if is_late and len(self.candidates) == number + 1:
                self._requests = self._requests[: number + 1]
                break
        self._warm_up()
        return not self.duet.is_broken

    def _warm_up(self) -> None:
        """Brings the candidates to where the incumbent stands in the stream of samples."""
        incumbent = self.incumbent
        if incumbent is None or not incumbent.stands or not incumbent.trained_seconds:
            self.duet.warm_up()
            return
        for player in self.candidates:
            if player.stands:
                player.warm_up(incumbent.position, self.duet.warm_after, self.deadline)

    def _seated(self, request: Request) -> Player:
        """A player in a host that can play it, which starts if there is none."""
        host = next((host for host in self._hosts if host.stands and host.can_play(request)), None)
        if host is None:
            host = Host(self._isolation, request, _latest_start(self._plan, self.deadline))
            self._hosts.append(host)
        return Player(host, request)


def _is_same(player: Player, request: Request) -> bool:
    """Whether a living player trains what is requested: the same config, and the same part of training."""
    same = player.request.point == request.point and player.request.plan.part == request.plan.part
    return same and player.stands and player.host.stands


def _seconds(duet: Duet, incumbent: Player, candidate: Player) -> tuple[list[float], list[float]]:
    """Seconds of both players, in the turns that count."""
    both = min(len(incumbent.blocks), len(candidate.blocks))
    turns = duet.within_epochs([incumbent, candidate])
    blocks = [(incumbent.blocks[turn], candidate.blocks[turn]) for turn in turns if turn < both]
    # Blocks have the same samples, or about as many where effective batches differ: compare seconds of equally many.
    mine = [incumbent.per_sample(a) * math.sqrt(a.samples * b.samples) for a, b in blocks]
    theirs = [candidate.per_sample(b) * math.sqrt(a.samples * b.samples) for a, b in blocks]
    return mine, theirs


def _latest_start(plan: BurstPlan, deadline: float) -> float:
    """When a player must have started at the latest: compiling may take all but the time to play."""
    now = time.monotonic()
    return max(now + START_SHARE * (deadline - now), deadline - playing_seconds(plan))


def playing_seconds(plan: BurstPlan) -> float:
    """Part of a challenge's time that is kept for playing, and for the end of both players."""
    return 2 * END_SECONDS + 2 * PLAYING_TURNS * plan.measure_seconds
