"""Rounds side by side where memory allows, and whole bursts in turn where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autotune.bursts.protocol import BurstPlan
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.statistics import Interval
from autotune.search.turns import LOST_PARTNERS, NO_ROOM, NOT_BOTH, Turns
from tests.factories import make_burst

if TYPE_CHECKING:
    import pytest

PLAN = BurstPlan()
POINTS = [Point(config=TrainConfig(batch_size=size)) for size in (64, 32)]


class Machine:
    """Runs points alone; side by side some of them run out of memory, or of what else only so many can have."""

    def __init__(
        self, room: int, ratio: float = 1.0, outcome: Outcome = Outcome.OOM, reason: str | None = None
    ) -> None:
        self.room = room
        self.ratio = ratio
        self.outcome = outcome
        self.reason = reason
        self.played: list[int] = []
        self.ran: list[Point] = []

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Alone there is room; the second is faster than the first, as told."""
        self.ran.append(point)
        rate = 1000.0 * (self.ratio if point == POINTS[1] else 1.0)
        return make_burst(rate).model_copy(update={"point": point})

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """So many fit together."""
        self.played.append(len(points))
        full = Burst(point=points[-1], outcome=Outcome.OOM, seconds=1.0)
        bursts = [make_burst(1000.0).model_copy(update={"point": point}) for point in points]
        return bursts if len(points) <= self.room else [*bursts[:-1], full]

    def challenge(
        self,
        incumbent: Point | None,
        candidate: Point,
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Pair], None],
    ) -> tuple[Burst, Pair | None]:
        """As fast as each other, where both fit."""
        (burst,) = self.play([candidate], plan, deadline_seconds)
        if incumbent is None:
            return burst, None
        if self.room < 2:
            return Burst(point=candidate, outcome=self.outcome, reason=self.reason, seconds=1.0), None
        return burst, Pair(partner=incumbent, ratio=1.0, ci95=Interval(0.99, 1.01), blocks=9)

    def prepare(self, candidate: Point, plan: BurstPlan) -> None:
        """Nothing is started beforehand."""

    @property
    def is_prepared(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Nothing lives on."""


def test_sides_that_fit_play_together() -> None:
    """Nothing runs alone then."""
    machine, notes = Machine(room=2), list[str]()
    bursts = Turns(machine, notes.append).play(POINTS, PLAN, lambda _: 10.0, 60.0)
    assert [burst.point for burst in bursts] == POINTS
    assert machine.ran == []
    assert notes == []


def test_out_of_memory_beside_others_is_no_verdict() -> None:
    """Each runs again alone, in this round and in all that follow, and that is told once."""
    machine, notes = Machine(room=1), list[str]()
    turns = Turns(machine, notes.append)
    for _ in range(2):
        assert all(burst.ok for burst in turns.play(POINTS, PLAN, lambda _: 10.0, 60.0))
    assert machine.played == [2]
    assert sorted(map(repr, machine.ran)) == sorted(map(repr, POINTS * 2))
    assert notes == [NO_ROOM]


def test_a_candidate_without_room_beside_the_incumbent_runs_alone() -> None:
    """So does the incumbent, once, so that there is a ratio, with its doubts; the next may fit beside it again."""
    machine, notes = Machine(room=1), list[str]()
    turns = Turns(machine, notes.append)
    for _ in range(2):
        burst, pair = turns.challenge(POINTS[0], POINTS[1], PLAN, 60.0, lambda _: None)
        assert burst.ok
        assert pair is not None
        assert pair.blocks == 0
        assert pair.ci95.low < pair.ratio == 1.0 < pair.ci95.high
    assert machine.ran == [POINTS[1], POINTS[0], POINTS[1]]
    assert machine.played == [1, 1]
    assert notes == []
    assert turns.side_by_side


def test_where_the_next_incumbent_leaves_no_room_whole_bursts_take_turns() -> None:
    """From then on, which is told; rounds, of other points perhaps, are still tried side by side."""
    machine, notes = Machine(room=1, ratio=2.0), list[str]()
    turns = Turns(machine, notes.append)
    for _ in range(2):
        turns.challenge(POINTS[0], POINTS[1], PLAN, 60.0, lambda _: None)
    assert machine.played == [1]
    assert notes == [NO_ROOM]
    machine.room = 2
    turns.play(POINTS, PLAN, lambda _: 10.0, 60.0)
    assert machine.played == [1, 2]


def test_a_partner_that_was_gone_is_run_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the system killed it for want of memory: twice, and whole bursts take turns."""
    machine, notes = Machine(room=2), list[str]()
    turns = Turns(machine, notes.append)
    monkeypatch.setattr(machine, "challenge", lambda _, candidate, *__: (machine.run(candidate, PLAN, 1.0), None))
    found = [turns.challenge(POINTS[0], POINTS[1], PLAN, 60.0, lambda _: None) for _ in range(LOST_PARTNERS)]
    assert all(pair is not None and pair.blocks == 0 for _, pair in found)
    assert not turns.side_by_side
    assert notes == [NO_ROOM]


def test_two_that_cannot_train_at_once_take_turns() -> None:
    """The candidate is not blamed, and all that comes later runs alone."""
    machine, notes = Machine(1, 1.5, Outcome.CRASHED, "Address already in use"), list[str]()
    turns = Turns(machine, notes.append)
    burst, pair = turns.challenge(POINTS[0], POINTS[1], PLAN, 60.0, lambda _: None)
    assert burst.ok
    assert pair is not None
    assert 1.4 < pair.ratio < 1.6
    assert notes == [NOT_BOTH.format("Address already in use")]
    assert not turns.side_by_side
    machine.played.clear()  # what it was before
    turns.play(POINTS, PLAN, lambda _: 10.0, 60.0)
    assert machine.played == []


def test_a_candidate_that_crashes_where_others_live_together_is_to_blame() -> None:
    """It does not run again alone; nor is anything told of one that crashes alone, too."""
    machine, notes = Machine(room=2), list[str]()
    turns = Turns(machine, notes.append)
    turns.challenge(POINTS[0], POINTS[1], PLAN, 60.0, lambda _: None)
    crashed = Burst(point=POINTS[1], outcome=Outcome.CRASHED, seconds=1.0)
    machine.challenge = lambda *_: (crashed, None)  # type: ignore[method-assign]
    assert turns.challenge(POINTS[0], POINTS[1], PLAN, 60.0, lambda _: None) == (crashed, None)
    machine.run = lambda *_: crashed  # type: ignore[method-assign]
    fresh = Turns(machine, notes.append)
    assert fresh.challenge(POINTS[0], POINTS[1], PLAN, 60.0, lambda _: None)[0].outcome is Outcome.CRASHED
    assert notes == []
