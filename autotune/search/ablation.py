"""What each changed knob is worth: what the search's model says of the answer with that knob reverted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from autotune.knobs import following, in_guides_order
from autotune.measuring import PROCESS_SPREAD, Interval, Pair, Point, Speedup
from autotune.results.result import AblationRow
from autotune.results.summary import knob_text
from autotune.search.model import Design, Effects
from autotune.search.proposal import ALLOCATOR
from autotune.search.ranking import pairs_of
from autotune.search.rounds import TIE
from autotune.search.trials import Trial

MOST_PRIOR = 0.5
"""The largest share of its prior variance that a worth may keep: trials then say as much as the prior. Not tuned."""
WIDEST_WORTH = math.log(2)
"""The largest half-width of a worth's interval: one that may be half or double says nothing, though the confirmed
speed-up narrows it. On a busy machine, malloc's settings were reported to be worth 9.23 x (4.93 - 17.3) and were worth
1.0 x: their pair was 0.72 x (0.12 - 4.3)."""
LOSSES = (0.005, 0.01, 1 - TIE)
"""Shares of the winner's rate that a point with fewer changes may lose, by the model's estimate. Each share gives a
point that plays the winner. The largest is a tie. Not tuned."""
_SIDE = NormalDist().inv_cdf(0.975)


def reverted(winner: Point, baseline: Point) -> dict[str, Point]:
    """The winner with each changed knob or argument of `build()` reverted to the baseline's, in the guides' order.

    The accumulation follows the batch size, so that the effective batch stays. A knob is left out where reverting it
    has no effect, for example a prefetch factor that is torch's default. Some knobs only act together and are reverted
    together: workers, and the loader that a data set collated once makes needless.
    """
    points: dict[str, Point] = {}
    before = baseline.config
    was = {name: value for name, (value, _) in winner.config.changes_from(before).items()}
    idle = {name: value for name, value in was.items() if winner.changed({name: value}) == winner}
    for knob in in_guides_order():
        points[knob] = winner.changed(idle | {name: getattr(before, name) for name in (knob, *following(knob))})
    for name in sorted(winner.parameters):
        kept = {key: value for key, value in winner.parameters.items() if key != name}
        own = {name: baseline.parameters[name]} if name in baseline.parameters else {}
        points[name] = Point(config=winner.config, parameters=kept | own)
    return {name: point for name, point in points.items() if point != winner}


def simpler(winner: Point, baseline: Point, trials: Sequence[Trial], design: Design) -> list[Point]:
    """Points with fewer changes than the winner that may be as fast, the simplest first.

    The first ones revert several changes, beginning with the one that the model expects to gain least, up to each loss
    of `LOSSES`. The others revert a single change of uncertain worth. malloc's settings stay: the search holds them.
    """
    effects = Effects(design, _pairs(trials))
    points: list[Point] = []
    for loss in LOSSES:
        here = winner
        while without := _without_one(here, baseline):
            gains = effects.explained(without, winner)
            least = int(gains.argmax())
            if gains[least] < math.log(1 - loss):
                break
            here = without[least]
        points.insert(0, here)
    without = _without_one(winner, baseline)
    beliefs = effects.beside(without, winner)
    most = beliefs.mean + _SIDE * beliefs.deviation
    points += [without[index] for index in (-most).argsort() if most[index] >= math.log(1 - LOSSES[-1])]
    return [point for point in dict.fromkeys(points) if point != winner]


def _pairs(trials: Sequence[Trial]) -> list[tuple[Point, Pair]]:
    """The pairs that say something about the model's knobs."""
    return pairs_of([trial for trial in trials if trial.stage != ALLOCATOR])


def _without_one(winner: Point, baseline: Point) -> list[Point]:
    return [point for name, point in reverted(winner, baseline).items() if name != "allocator"]


def ablation_rows(
    winner: Point, baseline: Point, trials: Sequence[Trial], design: Design, speedup: Speedup | None = None
) -> tuple[AblationRow, ...]:
    """What each changed knob is worth: the winner's score over its score without that change, in the guides' order.

    A knob is left out where the trials say less about it than the prior, or next to nothing. On a CPU the model does
    not hold malloc's settings; a pair of fresh processes gives their worth.

    The search picks the point that looked best, so its estimates are flattered. The confirmed speed-up of all changes
    together corrects them: each by its share in the variance of their sum.

    Args:
        winner: The answer.
        baseline: The point that it replaces.
        trials: All trials so far.
        design: The model's design.
        speedup: The confirmed speed-up of the winner over the baseline.
    """
    without = reverted(winner, baseline)
    points = list(without.values())
    pairs = _pairs(trials)
    known, prior = (Effects(design, one).beside(points, winner) for one in (pairs, ()))
    fresh = next((trial.pair for trial in trials if trial.stage == ALLOCATOR and trial.pair is not None), None)
    gains = {name: (-float(known.mean[index]), float(known.deviation[index])) for index, name in enumerate(without)}
    deviations = {name: float(prior.deviation[index]) for index, name in enumerate(without)}
    unknown = {name for name, (_, deviation) in gains.items() if deviation**2 > MOST_PRIOR * deviations[name] ** 2}
    if "allocator" in gains and fresh is not None:
        gains["allocator"] = math.log(fresh.ratio), fresh.error
        unknown -= {"allocator"}
    gains = {name: (gain, math.hypot(deviation, PROCESS_SPREAD)) for name, (gain, deviation) in gains.items()}
    unknown |= {name for name, (_, deviation) in gains.items() if _SIDE * deviation > WIDEST_WORTH}
    if speedup is not None and 0 < speedup.ci95.low < speedup.ci95.high:
        gains = _summing_to(speedup, gains)
    rows = []
    for name in (name for name in without if name not in unknown):
        gain, half = gains[name][0], _SIDE * gains[name][1]
        before, after = (knob_text(name, side.values.get(name)) for side in (baseline, winner))
        ci95 = Interval(math.exp(gain - half), math.exp(gain + half))
        rows.append(AblationRow(knob=name, before=before, after=after, ratio=math.exp(gain), ci95=ci95))
    return tuple(rows)


def _summing_to(speedup: Speedup, gains: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Logarithms of gains with their deviations, conditioned on their sum (a normal posterior)."""
    error = math.log(speedup.ci95.high / speedup.ci95.low) / (2 * _SIDE)
    missing = math.log(speedup.ratio) - math.fsum(gain for gain, _ in gains.values())
    whole = error**2 + math.fsum(deviation**2 for _, deviation in gains.values())
    return {
        name: (gain + deviation**2 / whole * missing, deviation * math.sqrt(max(0.0, 1 - deviation**2 / whole)))
        for name, (gain, deviation) in gains.items()
    }
