"""Rounds side by side where memory allows, and whole bursts in turn where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from autotune.bursts.protocol import BurstPlan
from autotune.hardware.model import DeviceKind
from autotune.knobs.config import TrainConfig
from autotune.measuring.pairs import Pair
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.statistics import Interval
from autotune.search.turns import NO_ROOM, Turns
from tests.factories import make_burst

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
        self.challenges = 0
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
        candidates: Sequence[Point],
        plan: BurstPlan,
        deadline_seconds: float,
        told: Callable[[Point, Pair], None],
    ) -> list[tuple[Burst, Pair | None]]:
        """As fast as each other, where both fit."""
        self.challenges += 1
        if incumbent is not None and self.room < 2:
            return [
                (Burst(point=one, outcome=self.outcome, reason=self.reason, seconds=1.0), None) for one in candidates
            ]
        pair = Pair(partner=incumbent or candidates[0], ratio=1.0, ci95=Interval(0.99, 1.01), blocks=9)
        bursts = [make_burst(1000.0).model_copy(update={"point": one}) for one in candidates]
        return [(burst, pair if incumbent is not None else None) for burst in bursts]

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


APART = Point(config=POINTS[1].config.replace(ranks=2))
"""It needs a process of its own beside the first."""


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.CRASHED])
def test_what_fails_in_a_process_of_its_own_beside_the_incumbent_runs_alone(outcome: Outcome) -> None:
    """So does the incumbent, once, so that there is a ratio, with its doubts."""
    machine = Machine(room=1, outcome=outcome)
    turns = Turns(machine, list[str]().append)
    for _ in range(2):
        ((burst, pair),) = turns.challenge(POINTS[0], [APART], PLAN, 60.0, lambda *_: None)
        assert burst.ok
        assert pair is not None
        assert pair.blocks == 0
        assert pair.ci95.low < pair.ratio == 1.0 < pair.ci95.high
    assert machine.ran == [APART, POINTS[0], APART]


@pytest.mark.parametrize(("fits", "room", "ran"), [(True, 2, 1), (False, 2, 1), (True, 1, 3)])
def test_what_comes_near_the_memory_target_runs_alone_first(fits: bool, room: int, ran: int) -> None:
    """Only what fits alone joins the incumbent; where the two do not fit together, whole bursts take turns."""
    machine = Machine(room=room)
    alone = machine.run
    if not fits:
        machine.run = lambda *of: alone(*of).model_copy(update={"outcome": Outcome.OOM, "measurement": None})  # type: ignore[method-assign]
    turns = Turns(machine, list[str]().append, lambda point: point == POINTS[1], device="cpu")
    ((burst, pair),) = turns.challenge(POINTS[0], POINTS[1:], PLAN, 60.0, lambda *_: None)
    assert (burst.ok, pair is not None, machine.challenges) == (fits, fits, int(fits))
    assert len(machine.ran) == ran


@pytest.mark.parametrize(
    ("device", "outcome", "again"),
    [("cuda", Outcome.OOM, False), ("cpu", Outcome.CRASHED, False), ("cpu", Outcome.OOM, True)],
)
def test_what_fails_in_the_incumbents_own_process_is_to_blame_but_for_a_heap_that_all_share(
    device: DeviceKind, outcome: Outcome, again: bool
) -> None:
    """A GPU counts each player's memory; on a CPU the candidate runs again alone, and then the incumbent."""
    machine = Machine(room=1, outcome=outcome)
    turns = Turns(machine, list[str]().append, device=device)
    ((burst, pair),) = turns.challenge(POINTS[0], POINTS[1:], PLAN, 60.0, lambda *_: None)
    assert burst.outcome is (Outcome.OK if again else outcome)
    assert (pair is not None) is again
    assert machine.ran == (POINTS[::-1] if again else [])


def test_one_that_fails_leaves_the_others() -> None:
    """Their figures stand."""
    machine = Machine(room=2)
    original = machine.challenge

    def challenge(*of):  # type: ignore[no-untyped-def]
        found = original(*of)
        return [(found[0][0].model_copy(update={"outcome": Outcome.OOM, "measurement": None}), None), *found[1:]]

    machine.challenge = challenge  # type: ignore[method-assign]
    found = Turns(machine, list[str]().append).challenge(POINTS[0], POINTS, PLAN, 60.0, lambda *_: None)
    assert [burst.ok for burst, _ in found] == [False, True]
