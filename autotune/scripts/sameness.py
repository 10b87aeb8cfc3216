"""Compares losses to the last bit: knobs that only feed a script must not change what it computes.

The number of loading processes, how far they load ahead, and the memory that batches are copied from change no computed
number: for these knobs torch promises the same samples in the same order. The script's own code may break this promise.
A data set that counts its reads, shares a file among workers, or yields everything in each worker trains on other
samples with workers. So the first steps run with and without such changes, from the same seeds, and the losses must be
equal. Each sample is read under random numbers that its index seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.errors import AutotuneError
from autotune.knobs.registry import of_loader
from autotune.measuring import Agreement, Numerics, NumericsGuard, Point
from autotune.measuring.numerics import FEWEST_STEPS

NEUTRAL = tuple(name for name in of_loader() if name != "dataloader_in_order")
"""The knobs that must not change losses. `dataloader_in_order` is not one: it asks for another order."""
Losses = Callable[[Point, int, float], tuple[float, ...]]
_NO_TIME = Numerics(
    outcome="unchecked", reason="it computes as the baseline does, but there was no time to compare what it reads"
)


class ScriptNumerics(NumericsGuard):
    """Checks arithmetic as `NumericsGuard` does, and that neutral knobs change no bit of the losses.

    Args:
        measure: Measures a point's agreement over a number of steps, within a deadline in seconds.
        baseline: The unchanged script.
        note: Receives what is left out, and why.
        losses: Returns the losses of a point's first steps, within a deadline in seconds.
    """

    def __init__(
        self,
        measure: Callable[[Point, int, float], Agreement],
        baseline: Point,
        note: Callable[[str], None],
        losses: Losses,
    ) -> None:
        super().__init__(measure, baseline, note)
        self._losses = losses
        self._own: tuple[float, ...] = ()
        self._unrepeatable: str | None = None
        self._bits: dict[tuple[object, ...], Numerics] = {}

    def known(self, point: Point) -> Numerics | None:
        """The verdict, if there is one already."""
        if not self._feeds_otherwise(point):
            return super().known(point)
        bits = self._bits.get(point.config.pick(NEUTRAL))
        if bits is None or bits.outcome == "disagrees":
            return bits
        verdict = super().known(point)
        return bits if verdict is not None and verdict.outcome == "unchanged" else verdict

    def check(self, point: Point, steps: int, deadline_seconds: float) -> Numerics | None:
        """The verdict, measured if needed; a check that fails to run does not reject the config."""
        if (verdict := self.known(point)) is not None:
            return verdict
        if not self._feeds_otherwise(point):
            return super().check(point, steps, deadline_seconds)
        neutral = point.config.pick(NEUTRAL)
        if neutral not in self._bits and steps >= FEWEST_STEPS:
            self._bits[neutral] = self._compared(point, steps, deadline_seconds)
            if self._bits[neutral].outcome == "disagrees":
                self._note(f"left out, since it trains on something else: {self._bits[neutral].reason}")
        bits = self._bits.setdefault(neutral, _NO_TIME)
        if bits.outcome == "disagrees":
            return bits
        verdict = super().check(point, steps, deadline_seconds)
        return bits if verdict is not None and verdict.outcome == "unchanged" else verdict

    def _feeds_otherwise(self, point: Point) -> bool:
        return point.config.pick(NEUTRAL) != self._baseline.config.pick(NEUTRAL)

    def _compared(self, point: Point, steps: int, deadline_seconds: float) -> Numerics:
        """Compares a point's neutral changes with the unchanged script, of which two runs must agree first."""
        fed = {name: getattr(point.config, name) for name in NEUTRAL}
        try:
            if len(self._own) < FEWEST_STEPS and self._unrepeatable is None:
                self._own, again = (self._losses(self._baseline, steps, deadline_seconds) for _ in range(2))
                if (step := first_difference(self._own, again)) is not None:
                    self._unrepeatable = (
                        "two runs of the script as it is, from the same seeds, have other losses from step "
                        f"{step + 1} on, so that changes of its loader cannot be compared to the last bit"
                    )
                    self._note(self._unrepeatable)
            if self._unrepeatable is not None:
                return Numerics(outcome="unchanged", reason=f"it computes as the baseline does; {self._unrepeatable}")
            changed = Point(config=self._baseline.config.replace(**fed))
            losses = self._losses(changed, steps, deadline_seconds)
        except AutotuneError as error:
            return Numerics(outcome="unchecked", reason=f"comparing losses failed: {error}")
        compared = min(len(losses), len(self._own))
        if not compared:
            return Numerics(outcome="unchecked", reason="no loss was seen: nothing called backward() on one")
        if (step := first_difference(self._own, losses)) is None:
            reason = f"it computes as the baseline does: the losses of {compared} steps are the same to the last bit"
            return Numerics(outcome="unchanged", reason=reason, steps=compared)
        reason = (
            f"{changed.changes_text(self._baseline, ', ')} must not change a bit, but the loss of step {step + 1} is "
            f"{losses[step]!r} instead of {self._own[step]!r}: the data set is not read alike"
        )
        return Numerics(outcome="disagrees", reason=reason, steps=compared)


def first_difference(mine: tuple[float, ...], theirs: tuple[float, ...]) -> int | None:
    """The first place where the losses of two runs differ; None if all that both have are equal."""
    for place, (own, other) in enumerate(zip(mine, theirs, strict=False)):
        if own != other and not (math.isnan(own) and math.isnan(other)):
            return place
    return None
