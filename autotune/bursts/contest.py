"""The incumbent, alive, and one candidate after another that plays against it, while another one may compile.

A candidate starts a little before the place in the stream of samples where the incumbent stands, warms up alone until
it stands there too, and then both train the same ones. A clear loser costs its start and a few blocks; a winner takes
the incumbent's place without starting again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.bursts.duet import START_SHARE, Duet
from autotune.bursts.isolation import Isolation
from autotune.bursts.live import Ended
from autotune.bursts.protocol import BurstPlan, Request
from autotune.bursts.side import END_SECONDS, Side
from autotune.measuring import Measurement, Pair, Scatter, pair_of

PLAYING_TURNS = 3
"""Time is kept for as many turns as a side is to be measured, so many times over, when a candidate's start is waited
for: warming up and sizing blocks take turns as well."""
PROMISING = 3
"""A candidate that would take the incumbent's place, though it is not beyond doubt, plays so many times as long: all
that come later are measured against it, and a lucky one spoils their figures. Chosen."""


@dataclass(frozen=True)
class Challenged:
    """What came of a challenge.

    Attributes:
        ended: How the candidate ended; None when it lives on, as the incumbent.
        measured: What was measured of it, if it lives on.
        counted: Which of its blocks count.
        pair: Its speed over the incumbent's; None without one, or where there were too few blocks.
        age_seconds: Since it was started, while others played perhaps.
    """

    ended: Ended | None
    measured: Measurement | None
    counted: list[int]
    pair: Pair | None
    age_seconds: float


class Contest:
    """Holds the incumbent's runner between challenges.

    Args:
        isolation: Where processes come from.
        seed: Of the order within turns.
    """

    def __init__(self, isolation: Isolation, seed: int) -> None:
        self._isolation = isolation
        self._seed = seed
        self._count = 0
        self._incumbent: Side | None = None
        self._prepared: Side | None = None
        self._scatter = Scatter()

    def challenge(
        self,
        incumbent: Request | None,
        candidate: Request,
        plan: BurstPlan,
        deadline: float,
        told: Callable[[Pair], None],
    ) -> Challenged:
        """Plays a candidate against the incumbent until it is decided, or known well enough, or time is up.

        Args:
            incumbent: Who that is; it is started where it does not live. None: the candidate trains alone, and becomes
                the incumbent.
            candidate: What to run.
            plan: How long each side trains at most.
            deadline: `time.monotonic()` at which all is over.
            told: What is known after each turn.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
            IsolationError: No process could be started.
            Interrupted: Asked to end.
        """
        self._count += 1
        duet = Duet(plan, deadline, self._seed + self._count, ends=1)
        try:
            if incumbent is not None:
                latest = _latest_start(plan, deadline)
                duet.join(self._living(incumbent, latest), latest)
            else:
                self._end_incumbent()
            partners = duet.standing
            latest = _latest_start(plan, deadline)
            side = self._take_prepared(candidate) or Side(self._isolation, candidate, latest)
            duet.join(side, latest)
            for living in partners:
                side.warm_up(living.position, duet.warm_after, deadline)
            if side.stands:
                duet.take_turns(lambda _: self._enough(duet, plan, told))
            return self._settled(duet, side, plan, deadline)
        except BaseException:
            self.close()
            for left in duet.sides:
                left.discard()
            raise

    def prepare(self, candidate: Request, deadline: float) -> None:
        """Starts a candidate that takes long to compile; it goes on while others play, until it is challenged with.

        Args:
            candidate: What to run.
            deadline: `time.monotonic()` at which its process must exist.

        Raises:
            TargetError, WorkloadError: The module can no longer be imported.
            IsolationError: No process could be started.
            Interrupted: Asked to end.
        """
        self._prepared = Side(self._isolation, candidate, deadline)

    @property
    def is_prepared(self) -> bool:
        """Whether what was to be prepared has taken its first steps, has failed, or was ended for its memory."""
        return self._prepared is None or self._prepared.has_started

    def _take_prepared(self, candidate: Request) -> Side | None:
        """The candidate's side, if it was prepared."""
        side = self._prepared
        if side is None or side.request.point != candidate.point:
            return None
        self._prepared = None
        return side

    def close(self) -> None:
        """Ends the incumbent's runner, and what was prepared."""
        self._end_incumbent()
        side, self._prepared = self._prepared, None
        if side is not None:
            side.discard()

    def _end_incumbent(self) -> None:
        side, self._incumbent = self._incumbent, None
        if side is not None:
            side.discard()

    def _living(self, wanted: Request, deadline: float) -> Side:
        """The incumbent's runner; a new one where another config lives, or none."""
        side = self._incumbent
        if side is None or not side.stands or not _is_same(side.request, wanted):
            self._end_incumbent()
            side = self._incumbent = Side(self._isolation, wanted, deadline)
        return side

    def _enough(self, duet: Duet, plan: BurstPlan, told: Callable[[Pair], None]) -> bool:
        """Whether more turns would change nothing, or the plan's time is spent.

        Not while there are too few blocks to say anything: where steps are slow, or many workers wait, they are long,
        and twice the speed would be let go.
        """
        pair, seconds = self._pair(duet), plan.measure_seconds
        if pair is not None:
            told(pair)
            if plan.fastest_wins and pair.too_few:
                return False
            if plan.fastest_wins and pair.decided:
                return True
            if plan.fastest_wins and pair.promotes:
                seconds *= PROMISING
        return duet.counted_seconds() >= len(duet.standing) * seconds

    def _settled(self, duet: Duet, side: Side, plan: BurstPlan, deadline: float) -> Challenged:
        """Who stays, and what was measured of the candidate."""
        pair, counted = self._pair(duet), duet.counted()
        if pair is not None:
            self._scatter.add(*_seconds(duet))
        if self._incumbent is not None and not self._incumbent.stands:
            self._incumbent = None
        if side.stands and not side.blocks:
            side.discard()
        wins = plan.fastest_wins and pair is not None and pair.promotes
        if side.stands and (self._incumbent is None or wins):
            measured = side.report(deadline)
            if measured is not None:
                self._end_incumbent()
                self._incumbent = side
                return Challenged(None, measured, counted, pair, side.age_seconds)
        elif side.stands:
            side.end(deadline)
        return Challenged(side.ended, None, counted, pair, side.age_seconds)

    def _pair(self, duet: Duet) -> Pair | None:
        """What the turns that count say so far of the second side against the first."""
        if len(duet.sides) < 2:
            return None
        incumbent, candidate = duet.sides
        if incumbent.request.point is None or not candidate.blocks:
            return None
        return pair_of(incumbent.request.point, *_seconds(duet), self._scatter)


def _is_same(living: Request, wanted: Request) -> bool:
    """Whether a runner trains what is wanted: all of it, not its computing alone."""
    return living.point == wanted.point and living.plan.part == wanted.plan.part


def _seconds(duet: Duet) -> tuple[list[float], list[float]]:
    """Of both sides, in the turns that count."""
    incumbent, candidate = duet.sides
    both = min(len(incumbent.blocks), len(candidate.blocks))
    blocks = [(incumbent.blocks[turn], candidate.blocks[turn]) for turn in duet.within_epochs() if turn < both]
    # Blocks have the same samples, or, of freed effective batches, about as many: seconds of as many are compared.
    mine = [incumbent.per_sample(a) * math.sqrt(a.samples * b.samples) for a, b in blocks]
    theirs = [candidate.per_sample(b) * math.sqrt(a.samples * b.samples) for a, b in blocks]
    return mine, theirs


def _latest_start(plan: BurstPlan, deadline: float) -> float:
    """When a side must have started at the latest: what compiles may take all but the time to play."""
    now = time.monotonic()
    return max(now + START_SHARE * (deadline - now), deadline - playing_seconds(plan))


def playing_seconds(plan: BurstPlan) -> float:
    """What of a challenge's time is kept for playing, and for the end of both sides."""
    return 2 * END_SECONDS + 2 * PLAYING_TURNS * plan.measure_seconds
