"""Ablation: what each changed knob is worth, by the winner with that knob reverted, side by side with the winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autotune.knobs import following, in_guides_order
from autotune.measuring import FEWEST_PAIRS, SAMPLES_PER_SECOND, Objective, Point
from autotune.results.result import AblationRow
from autotune.results.summary import knob_text
from autotune.search.rounds import Play, Round, played_round, speedup_of

MIN_ABLATION_ROUNDS, MAX_ROUNDS = FEWEST_PAIRS, 6


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


def ablate(
    winner: Point,
    variants: Sequence[Point],
    play: Play,
    *,
    affords: Callable[[Sequence[Point], int], bool],
    objective: Objective = SAMPLES_PER_SECOND,
) -> list[Round]:
    """Rounds of the winner and its variants, while there is time.

    Args:
        winner: What they are compared with.
        variants: One that fails drops out.
        play: Lets points train in turn.
        affords: Whether there is time for so many rounds of these points.
        objective: What is compared.
    """
    rounds: list[Round] = []
    standing = list(variants)
    for number in range(MAX_ROUNDS):
        order = [winner, *standing]
        least = max(1, MIN_ABLATION_ROUNDS - number)  # fewer have no spread to judge by
        if not standing or not affords(order, least):
            break
        rounds.append(played_round(order, number, play, objective))
        standing = [point for point in standing if point in rounds[-1]]
    return rounds


def ablation_rows(
    winner: Point,
    baseline: Point,
    variants: Mapping[str, Point],
    rounds: Sequence[Round],
    objective: Objective = SAMPLES_PER_SECOND,
) -> tuple[AblationRow, ...]:
    """What each knob is worth: the winner's score over its score without that change, in the order of the variants."""
    rows = []
    for name, point in variants.items():
        worth = speedup_of(winner, point, rounds, objective)
        if worth is None:
            continue
        before, after = (knob_text(name, side.values.get(name)) for side in (baseline, winner))
        rows.append(
            AblationRow(knob=name, before=before, after=after, ratio=worth.ratio, ci95=worth.ci95, pairs=worth.pairs)
        )
    return tuple(rows)
