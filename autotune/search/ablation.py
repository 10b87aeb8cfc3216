"""What each changed knob is worth: what the search's model says of the answer with that knob reverted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from autotune.knobs import following, in_guides_order
from autotune.measuring import PROCESS_SPREAD, Interval, Point
from autotune.results.result import AblationRow
from autotune.results.summary import knob_text
from autotune.search.model import Design, Effects
from autotune.search.proposal import ALLOCATOR
from autotune.search.standing import pairs_of
from autotune.search.trials import Trial

MOST_PRIOR = 0.5
"""Of the prior variance of a worth, the most that may be left: the trials then say as much as the prior. Not tuned."""
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


def ablation_rows(winner: Point, baseline: Point, trials: Sequence[Trial], design: Design) -> tuple[AblationRow, ...]:
    """What each changed knob is worth: the winner's score over its score without that change, in the guides' order.

    A knob is left out where the trials say less of it than the prior. malloc's settings, which the model does not hold
    on a CPU, are worth what their pair of fresh processes says.
    """
    without = reverted(winner, baseline)
    points = list(without.values())
    pairs = pairs_of([trial for trial in trials if trial.stage != ALLOCATOR])
    known, prior = (Effects(design, one).beside(points, winner) for one in (pairs, ()))
    fresh = next((trial.pair for trial in trials if trial.stage == ALLOCATOR and trial.pair is not None), None)
    rows = []
    for index, name in enumerate(without):
        loss, deviation = float(known.mean[index]), float(known.deviation[index])
        if name == "allocator" and fresh is not None:
            loss, deviation = -math.log(fresh.ratio), fresh.error
        elif deviation**2 > MOST_PRIOR * float(prior.deviation[index]) ** 2:
            continue
        half = _SIDE * math.hypot(deviation, PROCESS_SPREAD)
        before, after = (knob_text(name, side.values.get(name)) for side in (baseline, winner))
        ci95 = Interval(math.exp(-loss - half), math.exp(-loss + half))
        rows.append(AblationRow(knob=name, before=before, after=after, ratio=math.exp(-loss), ci95=ci95))
    return tuple(rows)
