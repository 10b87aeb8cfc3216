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
"""A candidate that would take the incumbent's place plays this many times as long: all later candidates are measured
against it, and a lucky one spoils their figures. One with 16 batches prepared, of 24 in an epoch, seemed 1.64 times as
fast in two blocks at the end of an epoch, where its workers had nothing left to read. Whole epochs were slower, and the
proof took all its time to refute it. Not tuned."""


class Contest:
    """A challenge: candidates, and an incumbent that they play against, each in a host that can play it.

    Args:
        living: Players from the last contest; all but the incumbent leave.
        incumbent: What candidates play against; it starts if it does not live.
        deadline: In `time.monotonic()`.
        scatter: How blocks have scattered in earlier contests; it learns from this one.
    """

    def __init__(
        self,
        isolation: Isolation,
        living: Sequence[Player],
        incumbent: Request | None,
        candidates: Sequence[Request],
        plan: BurstPlan,
        deadline: float,
        scatter: Scatter,
        on_pair: Callable[[Point, Pair], None],
    ) -> None:
        self.living: list[Player] = []  # players that live on
        self._incumbent = _kept(living, incumbent)
        self._candidates: list[Player] = []
        self._deadline = deadline
        self._isolation = isolation
        self._incumbent_request, self._requests = incumbent, candidates
        self._plan = plan
        self._scatter, self._on_pair = scatter, on_pair
        self._hosts: list[Host] = [self._incumbent.host] if self._incumbent is not None else []
        self._duet = Duet(plan, deadline, 0, ends=1)

    def play(self, seed: int) -> list[tuple[Burst, Pair | None]]:
        """Plays the contest; ends all its processes if it cannot.

        Args:
            seed: Seed of the order within turns.

        Returns:
            The burst of each candidate, in order, with the time that it has cost by itself; and its speed over the
            incumbent's. If the first ones take too long to begin, the last ones do not play, and are missing.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
            IsolationError: No process could be started.
            Interrupted: Asked to end.
        """
        try:
            self._take_turns(seed)
            return self._settled()
        except BaseException:
            self.living = []
            for host in self._hosts:
                host.discard()
            raise

    def _take_turns(self, seed: int) -> None:
        """Seats all players and lets them take turns; if a host ends, begins again without the player that trained."""
        while True:
            self._duet = Duet(self._plan, self._deadline, seed, ends=1)
            if self._seat_all():
                self._duet.take_turns(self._enough)
                if not self._duet.is_broken:
                    return
            if time.monotonic() >= _latest_start(self._plan, self._deadline):
                return

    def _enough(self) -> bool:
        """Whether each candidate is decided, or has spent the plan's time; passes each pair to `on_pair`.

        A candidate with too few blocks plays on: where steps are slow, or many workers wait, blocks are long, and one
        of twice the speed would be dropped.
        """
        fastest_wins = self._plan.fastest_wins
        for player in self._candidates:
            if player.stands and not player.decided:
                pair, seconds = self._pair(player), self._plan.measure_seconds
                if pair is not None:
                    self._on_pair(player.request.point, pair)
                    if fastest_wins and pair.too_few:
                        continue
                    if fastest_wins and pair.promotes:
                        seconds *= PROMISING
                    else:
                        player.decided = fastest_wins and pair.decided
                playing = self._beside(player)
                player.decided |= self._duet.counted_seconds(playing) >= len(playing) * seconds
        return all(player.decided or not player.stands for player in self._candidates)

    def _settled(self) -> list[tuple[Burst, Pair | None]]:
        """The result of each candidate; those that may be the next incumbent live on."""
        results = []
        self.living = [self._incumbent] if self._incumbent is not None and self._incumbent.stands else []
        for player in self._candidates:
            pair = self._pair(player)
            turns = self._duet.counted(self._beside(player))
            if pair is not None:
                self._scatter.add(*self._seconds(player))
            promoted = self._plan.fastest_wins and pair is not None and pair.promotes
            if player.stands and player.blocks and (promoted or self._incumbent is None):
                player.report(self._deadline, leaves=False)
                self.living += [player] if player.stands else []
            elif player.stands and player.host.stands:
                player.report(self._deadline, leaves=True)
            burst = player.burst(turns).model_copy(update={"seconds": player.seconds})
            results.append((burst, pair if burst.ok else None))
        kept = {id(player.host) for player in self.living}
        for host in self._hosts:
            if id(host) not in kept:
                host.discard()
        return results

    def _pair(self, player: Player) -> Pair | None:
        """A candidate's speed over the incumbent's, by the turns that count so far."""
        if self._incumbent is None or not player.blocks:
            return None
        return pair_of(self._incumbent.request.point, *self._seconds(player), self._scatter)

    def _seconds(self, candidate: Player) -> tuple[list[float], list[float]]:
        """Seconds of the incumbent and of a candidate, in the turns that count."""
        incumbent, _ = playing = self._beside(candidate)
        both = min(len(incumbent.blocks), len(candidate.blocks))
        blocks = [
            (incumbent.blocks[turn], candidate.blocks[turn])
            for turn in self._duet.within_epochs(playing)
            if turn < both
        ]
        # Where effective batches differ, blocks only hold about as many samples: compare seconds of equally many.
        mine = [incumbent.per_sample(a) * math.sqrt(a.samples * b.samples) for a, b in blocks]
        theirs = [candidate.per_sample(b) * math.sqrt(a.samples * b.samples) for a, b in blocks]
        return mine, theirs

    def _beside(self, player: Player) -> list[Player]:
        """A candidate and what it plays against."""
        return [player] if self._incumbent is None else [self._incumbent, player]

    def _seat_all(self) -> bool:
        """Lets each player that can still play take its first steps; returns False if a host ended meanwhile."""
        latest = _latest_start(self._plan, self._deadline)
        if self._incumbent is not None and not self._incumbent.stands:  # its blocks belong to no new one's turns
            self._incumbent = self._incumbent_request = None
        if self._incumbent_request is not None and (self._incumbent is None or self._incumbent.is_lost):
            self._incumbent = self._seated(self._incumbent_request)
        if self._incumbent is not None and self._incumbent.stands:
            self._duet.join(self._incumbent, latest)
        begun = time.monotonic()
        for number, request in enumerate(self._requests):
            earlier = self._candidates[number] if number < len(self._candidates) else None
            if earlier is None or earlier.is_lost:
                player = self._seated(request)
                player.seconds += earlier.seconds if earlier is not None else 0.0
                self._candidates[number : number + 1] = [player]
            player = self._candidates[number]
            if not player.stands:
                self._duet.players.append(player)
                continue
            self._duet.join(player, _latest_start(self._plan, self._deadline))
            if self._duet.is_broken:
                return False
            is_late = time.monotonic() > begun + SEAT_SHARE * (self._deadline - begun)
            if is_late and len(self._candidates) == number + 1:
                self._requests = self._requests[: number + 1]
                break
        self._warm_up()
        return not self._duet.is_broken

    def _warm_up(self) -> None:
        """Brings the candidates to where the incumbent stands in the stream of samples."""
        incumbent = self._incumbent
        if incumbent is None or not incumbent.stands or not incumbent.trained_seconds:
            self._duet.warm_up()
            return
        for player in self._candidates:
            if player.stands:
                player.warm_up(incumbent.position, self._duet.warm_after, self._deadline)

    def _seated(self, request: Request) -> Player:
        """A player in a host that can play it, which starts if there is none."""
        host = next((host for host in self._hosts if host.stands and host.can_play(request)), None)
        if host is None:
            host = Host(self._isolation, request, _latest_start(self._plan, self._deadline))
            self._hosts.append(host)
        return Player(host, request)


def _kept(living: Sequence[Player], incumbent: Request | None) -> Player | None:
    """The player that lives on as the incumbent, if it trains the same part of the same config; all others leave."""
    kept = None
    if incumbent is not None:
        alike = (player for player in living if player.request.point == incumbent.point and player.stands)
        same = (player for player in alike if player.request.plan.part == incumbent.plan.part)
        kept = next((player for player in same if player.host.stands), None)
    for player in living:
        if player is not kept:
            if kept is None or player.host is not kept.host:
                player.host.discard()
            else:
                player.report(time.monotonic() + END_SECONDS, leaves=True)
    return kept if kept is not None and kept.stands else None


def _latest_start(plan: BurstPlan, deadline: float) -> float:
    """When a player must have started at the latest: compiling may take all but the time to play."""
    now, playing_seconds = time.monotonic(), 2 * END_SECONDS + 2 * PLAYING_TURNS * plan.measure_seconds
    return max(now + START_SHARE * (deadline - now), deadline - playing_seconds)
