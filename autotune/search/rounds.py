"""Rounds of finalists and the baseline in fresh processes: which stay in, when the race is decided, which one won.

The best of many noisy figures is overstated (the winner's curse), and a machine drifts. So the finalists are measured
again, block by block in turn, and only these figures become a headline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from autotune.measuring import Burst, Objective, Point, Round, Rounds, Speedup

MAX_ROUNDS = 24
"""After that many rounds, another one would narrow an interval by a fiftieth."""
MIN_DECIDED_ROUNDS = 4
"""Rounds that end early on the spread which the interval is made of make it too narrow. From four rounds on, the effect
is small (simulated: see `autotune.measuring.speedup`)."""
MIN_RACED_ROUNDS = 3
"""A finalist that another one has clearly beaten drops out after this many rounds. Not tuned."""
HOPELESS_SHARE = 0.5
"""A finalist whose ratio lies this share of its half-width below 1 drops out. Its chance to be faster than the baseline
is one in ten after four rounds (Student's t), one in six after many."""
LONG_RACE_ROUNDS = 6
"""From this many rounds on, a race has one finalist. Not tuned."""
TIE = 0.98
"""A point within this share of the fastest ties with it, unless the rounds show that it is slower. The value lies below
the 3 to 6 % by which processes of one config were measured to differ."""
DECIDED_WIDTH = 0.02
"""Rounds end early once the interval is narrower than ± this share of the ratio. Not tuned."""

Play = Callable[[Sequence[Point], int], Sequence[Burst]]
"""Lets points train in turn, in the round of this number, and keeps the measurements."""


@dataclass(frozen=True)
class Confirmed:
    """A finalist after its rounds."""

    point: Point
    speedup: Speedup  # over the baseline
    among: int = 1  # number of finalists, for which the speed-up's interval allows


def confirm(
    baseline: Point,
    finalists: Sequence[Point],
    play: Play,
    earlier: Rounds,
    *,
    affords: Callable[[Sequence[Point]], bool],
    rival: float = 0.0,
    races: bool = True,
) -> None:
    """Plays rounds until decided, out of rounds, or out of time.

    Only the width of the intervals ends the rounds of a gain, never their position: to stop at the first significant
    round would inflate false positives. A finalist that fails is out; in a race also one that is clearly beaten. Half a
    round is worth nothing, so `affords` returns whether there is time for a round of these points. A point that does
    not race seems to reach the ratio `rival` over the baseline. A finalist whose gain is not confirmed, and whose
    interval lies below that, is out: the rival deserves the time.
    """
    rounds = earlier
    standing = list(finalists)
    for number in range(len(earlier.measured), MAX_ROUNDS):
        if len(rounds.measured) >= MIN_DECIDED_ROUNDS and _narrow(baseline, standing, rounds):
            return
        order = [baseline, *standing]
        if not affords(order):
            return
        measured = round_of(play(order, number), rounds.objective)
        rounds = Rounds([*rounds.measured, measured], rounds.objective)
        standing = [point for point in standing if point in measured]
        if races:
            standing = _still_racing(standing, baseline, rounds, rival)
        if not standing:
            return


def round_of(bursts: Sequence[Burst], objective: Objective) -> Round:
    """The round that bursts make, without those that failed or have no score."""
    ended = ((burst.point, burst.measurement) for burst in bursts if burst.ok and burst.measurement is not None)
    return {point: measured for point, measured in ended if objective.score(measured) is not None}


def _still_racing(standing: Sequence[Point], baseline: Point, rounds: Rounds, rival: float) -> list[Point]:
    """The finalists that neither the fastest one nor the baseline has clearly beaten in the same rounds, nor a rival.

    In the end all but one go: the rest of the time narrows the interval of the answer.
    """
    speedups = {point: rounds.speedup(baseline, point) for point in standing}
    number = len(rounds.measured)
    standing = [point for point in standing if not _overtaken(speedups[point], rival)]
    if number >= MIN_DECIDED_ROUNDS:
        standing = [point for point in standing if not _hopeless(speedups[point])]
    ratios = {point: speedup.ratio for point in standing if (speedup := speedups[point]) is not None}
    if number < MIN_RACED_ROUNDS or len(ratios) < 2:
        return list(standing)
    leader = max(ratios, key=lambda point: ratios[point])
    if number >= LONG_RACE_ROUNDS:
        return [leader]
    return [point for point in standing if point == leader or not _beaten(point, leader, rounds)]


def _hopeless(speedup: Speedup | None) -> bool:
    return speedup is not None and speedup.ratio * (speedup.ci95.high / speedup.ratio) ** HOPELESS_SHARE < 1


def _overtaken(speedup: Speedup | None, rival: float) -> bool:
    return speedup is not None and not speedup.confirmed and speedup.ci95.high < rival


def _beaten(point: Point, leader: Point, rounds: Rounds) -> bool:
    against = rounds.speedup(leader, point)
    return against is not None and against.ci95.high < 1


def as_good_as_the_fastest(ranked: Sequence[Confirmed], rounds: Rounds) -> list[Point]:
    """The fastest confirmed point, and all that tie with it; `ranked` comes from `rank`."""
    winners = [entry for entry in ranked if entry.speedup.confirmed]
    return [
        entry.point
        for entry in winners
        if entry.point == winners[0].point
        or (
            entry.speedup.ratio >= TIE * winners[0].speedup.ratio and not _beaten(entry.point, winners[0].point, rounds)
        )
    ]


def rank(baseline: Point, rounds: Rounds, failed: Collection[Point] = ()) -> list[Confirmed]:
    """All points that played the baseline in a round, fastest (by the objective) first.

    The fastest of several is flattered by chance: the intervals allow for the number of points. Points that
    failed in a round are out.
    """
    points = dict.fromkeys(point for measured in rounds.measured for point in measured if point != baseline)
    ranked = [
        Confirmed(point, speedup, len(points))
        for point in points
        if point not in failed and (speedup := rounds.speedup(baseline, point, among=len(points))) is not None
    ]
    return sorted(ranked, key=lambda entry: entry.speedup.ratio, reverse=True)


def _narrow(baseline: Point, standing: Sequence[Point], rounds: Rounds) -> bool:
    """Whether every interval is narrow."""
    for point in standing:
        speedup = rounds.speedup(baseline, point)
        if speedup is None or (speedup.ci95.high - speedup.ci95.low) / 2 > DECIDED_WIDTH * speedup.ratio:
            return False
    return True
