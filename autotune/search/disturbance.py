"""Disturbed bursts are run again; a machine that drifts is noticed by running the baseline again."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.bursts.protocol import BurstPlan
from autotune.bursts.runner import Runner
from autotune.measuring import Burst, Measurement, Point
from autotune.search.stages import ANCHOR, BASELINE
from autotune.search.trials import Trial

MAX_REPEATS = 2
REPEATS_SHARE = 0.1
"""Of the budget: beyond that, time is better spent on other configs and on the confirmation. Both are chosen."""
ALWAYS_BUSY_AFTER = 2
"""After so many bursts in a row that stayed disturbed, repeating is given up until one is not. Chosen."""
ANCHOR_EVERY = 10
"""Bursts: chosen, so that watching for drift takes a tenth of the search."""
NOTABLE_DRIFT, NOISY_DRIFT, CERTAIN_DRIFT = 0.03, 0.1, 0.2
"""Processes that train the same config were measured to differ by 3 to 6 %: the first is the least that is looked at,
and needs others to agree. The second and third are chosen: a machine that has changed beyond doubt."""


class RepeatingRunner:
    """Runs a disturbed burst again, at most twice, and keeps the one that was disturbed least.

    Args:
        runner: Runs bursts.
        note: Tells a person.
        allowance_seconds: What all repeats together may take.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        runner: Runner,
        note: Callable[[str], None],
        *,
        allowance_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._note = note
        self._allowance_seconds = allowance_seconds
        self._clock = clock
        self._still_disturbed = 0

    def run(self, point: Point, plan: BurstPlan, deadline_seconds: float) -> Burst:
        """Runs one burst, inside the deadline with all its repeats."""
        deadline = self._clock() + deadline_seconds
        bursts = [self._runner.run(point, plan, deadline_seconds)]
        while bursts[-1].disturbance is not None and self._may_repeat(bursts, deadline):
            bursts.append(self._runner.run(point, plan, deadline - self._clock()))
            self._allowance_seconds -= bursts[-1].seconds
        self._remember(bursts[-1])
        kept = min((burst for burst in bursts if burst.ok), key=_foreign_share, default=bursts[-1])
        thrown_away = sum(burst.measuring_seconds for burst in bursts if burst is not kept)
        return kept.model_copy(update={"repeats": len(bursts) - 1, "repeated_seconds": thrown_away})

    def play(self, points: Sequence[Point], plan: BurstPlan, deadline_seconds: float) -> list[Burst]:
        """Points side by side: what disturbs one block disturbs its partner, so that none is run again."""
        return self._runner.play(points, plan, deadline_seconds)

    def _may_repeat(self, bursts: Sequence[Burst], deadline: float) -> bool:
        if len(bursts) > MAX_REPEATS or self._still_disturbed >= ALWAYS_BUSY_AFTER:
            return False
        if bursts[-1].seconds > self._allowance_seconds:
            return False
        return self._clock() + 1.5 * bursts[-1].seconds < deadline

    def _remember(self, last: Burst) -> None:
        if last.disturbance is None:
            self._still_disturbed = 0
            return
        self._still_disturbed += 1
        if self._still_disturbed == ALWAYS_BUSY_AFTER:
            self._note(f"this machine is busy: {last.disturbance}; disturbed bursts are marked, and no longer repeated")


@dataclass(frozen=True)
class Drift:
    """How the machine's speed has moved, seen by running the baseline again.

    Attributes:
        factor: Speed now over speed at first; 1 while the change is not notable.
        largest: The largest notable change so far, as a share.
    """

    factor: float = 1.0
    largest: float = 0.0

    @property
    def noisy(self) -> bool:
        """Whether it is so large that a person should know."""
        return self.largest > NOISY_DRIFT


def drift_of(trials: Sequence[Trial]) -> Drift:
    """The drift that the anchors among some trials show.

    A change counts when both runs were steady, it is above 3 %, and their intervals are apart; and when two of the last
    three anchors show it, unless it is above 20 %: a single process may be slow by chance.
    """
    anchors = [
        trial.burst.measurement
        for trial in trials
        if trial.stage in {BASELINE, ANCHOR} and trial.burst.ok and trial.burst.measurement is not None
    ]
    changes = [_change(anchors[0], anchor) for anchor in anchors]
    factors = [_lasting(changes[max(0, end - 3) : end]) for end in range(1, len(changes) + 1)]
    if not factors:
        return Drift()
    return Drift(factor=factors[-1], largest=max(abs(factor - 1) for factor in factors))


def anchor_due(trials: Sequence[Trial]) -> bool:
    """Whether the baseline should run again: every ten bursts, and first of all after a resume."""
    own = [trial for trial in trials if not trial.resumed]
    anchored = [index for index, trial in enumerate(own) if trial.stage in {BASELINE, ANCHOR}]
    if not anchored:
        return any(trial.stage == BASELINE and trial.burst.ok for trial in trials)
    return len(own) - 1 - anchored[-1] >= ANCHOR_EVERY


def _change(first: Measurement, now: Measurement) -> float:
    factor = now.samples_per_second / first.samples_per_second
    before, after = first.ci95_samples_per_second, now.ci95_samples_per_second
    apart = first.steady and now.steady and (before.high < after.low or after.high < before.low)
    return factor if apart and abs(factor - 1) > NOTABLE_DRIFT else 1.0


def _lasting(changes: Sequence[float]) -> float:
    """What three anchors in a row, or fewer at first, say about the machine."""
    if abs(changes[-1] - 1) > CERTAIN_DRIFT:
        return changes[-1]
    return statistics.median(changes) if len(changes) == 3 else 1.0


def _foreign_share(burst: Burst) -> float:
    """For ordering disturbed bursts: an undisturbed one comes first."""
    telemetry = burst.measurement.telemetry if burst.measurement else None
    if telemetry is None or telemetry.disturbance is None:
        return -1.0
    return sum(
        share or 0.0
        for share in (telemetry.foreign_cpu_fraction, telemetry.stolen_cpu_fraction, telemetry.foreign_gpu_fraction)
    )
