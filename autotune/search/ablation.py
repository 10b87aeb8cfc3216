"""What each changed knob is worth: what the search's model says of the answer with that knob reverted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from autotune.knobs import following, in_guides_order
from autotune.measuring import PROCESS_SPREAD, Interval, Point, Speedup
from autotune.results.result import AblationRow
from autotune.results.summary import knob_text
from autotune.search.model import Design, Effects
from autotune.search.proposal import ALLOCATOR
from autotune.search.standing import pairs_of
from autotune.search.trials import Trial

MOST_PRIOR = 0.5
"""Of the prior variance of a worth, the most that may be left: the trials then say as much as the prior. Not tuned."""
LOSSES = (0.005, 0.01, 0.02)
"""Shares of its rate that the winner may lose, as the model believes, to have fewer changes. Each gives a point that
plays the winner; the last is what counts as a tie (`autotune.search.rounds.TIE`)."""
_SIDE = NormalDist().inv_cdf(0.975)


def reverted(winner: Point, baseline: Point) -> dict[str, Point]:
    """The winner with each changed knob or argument of `build()` reverted to the baseline's, in the guides' order.

    The accumulation goes with the batch size, so that the effective batch stays; a knob is left out where reverting it
    has no effect, as that of a prefetch factor that is torch's own. It is reverted along with what it means something
    with again: workers with the loader that a data set collated once has made needless.
    """
    found: dict[str, Point] = {}
    before = baseline.config
    was = {name: value for name, (value, _) in winner.config.changes_from(before).items()}
    idle = {name: value for name, value in was.items() if winner.changed({name: value}) == winner}
    for knob in in_guides_order():
        found[knob] = winner.changed(idle | {name: getattr(before, name) for name in (knob, *following(knob))})
    for name in sorted(winner.parameters):
        kept = {key: value for key, value in winner.parameters.items() if key != name}
        own = {name: baseline.parameters[name]} if name in baseline.parameters else {}
        found[name] = Point(config=winner.config, parameters=kept | own)
    return {name: point for name, point in found.items() if point != winner}


def simpler(winner: Point, baseline: Point, trials: Sequence[Trial], design: Design) -> list[Point]:
    """Points with fewer changes than the winner that may be as fast, the most changes reverted first.

    The first ones revert several changes, one by one, the one that the model believes to gain least first: as many as
    fit into each loss of `LOSSES`. The others revert one change, whose worth is not known well. malloc's settings stay:
    the search holds them.
    """
    effects = Effects(design, pairs_of([trial for trial in trials if trial.stage != ALLOCATOR]))
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
    return [point for point in dict.fromkeys(points) if point not in {winner, baseline}]


def _without_one(winner: Point, baseline: Point) -> list[Point]:
    return [point for name, point in reverted(winner, baseline).items() if name != "allocator"]


def ablation_rows(
    winner: Point, baseline: Point, trials: Sequence[Trial], design: Design, speedup: Speedup | None = None
) -> tuple[AblationRow, ...]:
    """What each changed knob is worth: the winner's score over its score without that change, in the guides' order.

    A knob is left out where the trials say less of it than the prior. malloc's settings, which the model does not hold
    on a CPU, are worth what their pair of fresh processes says.

    The search picks what looked best, so that its estimates are flattered. They are corrected by what the proof has
    shown of all changes together: each by the share that it has in the variance of their sum.

    Args:
        winner: The answer.
        baseline: What it replaces.
        trials: All that ran.
        design: Of all points.
        speedup: Of the winner over the baseline, as confirmed.
    """
    without = reverted(winner, baseline)
    points = list(without.values())
    pairs = pairs_of([trial for trial in trials if trial.stage != ALLOCATOR])
    known, prior = (Effects(design, one).beside(points, winner) for one in (pairs, ()))
    fresh = next((trial.pair for trial in trials if trial.stage == ALLOCATOR and trial.pair is not None), None)
    gains = {name: (-float(known.mean[index]), float(known.deviation[index])) for index, name in enumerate(without)}
    deviations = {name: float(prior.deviation[index]) for index, name in enumerate(without)}
    unknown = {name for name, (_, deviation) in gains.items() if deviation**2 > MOST_PRIOR * deviations[name] ** 2}
    if "allocator" in gains and fresh is not None:
        gains["allocator"] = math.log(fresh.ratio), fresh.error
        unknown -= {"allocator"}
    gains = {name: (gain, math.hypot(deviation, PROCESS_SPREAD)) for name, (gain, deviation) in gains.items()}
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
    """Logarithms of gains with their deviations, given what they are together: a normal posterior, conditioned."""
    error = math.log(speedup.ci95.high / speedup.ci95.low) / (2 * _SIDE)
    missing = math.log(speedup.ratio) - math.fsum(gain for gain, _ in gains.values())
    whole = error**2 + math.fsum(deviation**2 for _, deviation in gains.values())
    return {
        name: (gain + deviation**2 / whole * missing, deviation * math.sqrt(max(0.0, 1 - deviation**2 / whole)))
        for name, (gain, deviation) in gains.items()
    }
