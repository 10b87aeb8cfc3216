"""Checks that a config still trains what eager fp32 trains: a short side-by-side run, judged by gates.

PyTorch's own precision checks suggest the gates. They are widened by the natural spread: the difference between two
fp32 runs with other random numbers and another order of batches. A check of some twenty steps finds what is broken; it
does not prove that training converges alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel

from autotune.errors import AutotuneError
from autotune.knobs import HALF, TrainConfig, affecting
from autotune.measuring.records import Point
from autotune.stored import Stored, Whole

MOST_STEPS, FEWEST_STEPS = 20, 2
"""Steps of a check. The first one decides three of the five gates; with fewer than two, weights never change. Five at
least left slow models unchecked in short budgets."""
SPREAD = 3.0
"""Multiple of the natural spread that still counts as natural."""
LOSS_TOLERANCE, TF32_LOSS_TOLERANCE, HALF_LOSS_TOLERANCE = 1e-3, 5e-3, 2e-2
"""About ten times the error of one rounding, for tf32 (10 bits) and bf16 (7 bits)."""
MEAN_LOSS_TOLERANCE = 2e-2
"""Limit for the relative difference of the mean loss over all steps: rounding grows with the steps, in fp32 too."""
NORM_TOLERANCE = 0.1
"""Limit for the relative difference of the first step's gradient norm; the cosine judges its direction. Not tuned, nor
are the next two."""
LEAST_COSINE, HALF_LEAST_COSINE = 0.99, 0.95
"""Least cosine of the angle to the exact gradient; the second is for half precision."""
MOST_SKIPPED = 0.05
"""Largest share of steps that a GradScaler may skip: beyond it, a training loses what the config gains."""
CAVEAT = "a check of a few steps finds what is broken; it does not prove that training converges alike"


class Trace(BaseModel):
    """One run from the common state."""

    losses: tuple[float, ...]  # of each step, NaN and infinity included
    gradient_norm: float  # of the first step, before clipping
    skipped_steps: int = 0  # by the GradScaler, after it had found its scale
    cosine: float = 1.0  # between the first step's gradient and that of the reference
    half: bool = False  # weights or losses are half precision


class Agreement(BaseModel):
    """Figures of a config beside eager fp32, from one state and on one set of batches."""

    reference: Trace  # eager fp32
    control: Trace  # eager fp32 again, with other random numbers; batches after the first come in another order
    candidate: Trace  # the config
    has_batch_norm: bool  # the model normalises over the micro-batch


class Gate(Stored):
    """One criterion."""

    name: str  # what was compared
    value: float | None  # None when it is not finite
    limit: float  # the upper one; for a cosine, the lower one
    passed: bool  # the value keeps to the limit


class Numerics(Stored):
    """The verdict on a config."""

    # unchanged: it computes as the baseline does; unchecked: see the reason
    outcome: Literal["agrees", "disagrees", "unchanged", "unchecked"]
    reason: str  # one sentence
    steps: Whole = 0  # of the optimizer, one micro-batch each
    gates: tuple[Gate, ...] = ()  # what was compared
    notes: tuple[str, ...] = ()


def judge_agreement(measured: Agreement, config: TrainConfig, baseline: TrainConfig) -> Numerics:
    """Whether a config's figures agree with eager fp32.

    Args:
        measured: The figures.
        config: Its precision decides how close they must be, unless the model itself is half precision.
        baseline: If its micro-batch has another size, BatchNorm sees other statistics.
    """
    if not all(run.losses for run in (measured.reference, measured.control, measured.candidate)):
        return Numerics(outcome="unchecked", reason="no loss was seen: nothing called backward() on one")
    natural = (measured.reference, measured.control)
    if not all(map(math.isfinite, (v for run in natural for v in (*run.losses, run.gradient_norm)))):
        return Numerics(outcome="unchecked", reason="eager fp32 itself yields losses or gradients that are not finite")
    half = config.precision in HALF or measured.reference.half
    reference, control, candidate = measured.reference, measured.control, measured.candidate
    tolerance = HALF_LOSS_TOLERANCE if half else TF32_LOSS_TOLERANCE if config.precision == "tf32" else LOSS_TOLERANCE
    loss_limit = max(tolerance, SPREAD * _apart(control, reference, first=True))
    mean_limit = max(MEAN_LOSS_TOLERANCE, SPREAD * _apart(control, reference))
    norm_limit = max(NORM_TOLERANCE, SPREAD * _relative(control.gradient_norm, reference.gradient_norm))
    norm_apart = _relative(candidate.gradient_norm, reference.gradient_norm)
    cosine_limit = min(HALF_LEAST_COSINE if half else LEAST_COSINE, 1 - SPREAD * (1 - control.cosine))
    not_finite = sum(not math.isfinite(loss) for loss in candidate.losses)
    gates = [
        _at_most("steps with a loss that is not finite", not_finite, 0),
        _at_most("loss of the first step, relative difference", _apart(candidate, reference, first=True), loss_limit),
        _at_most("gradient norm of the first step, relative difference", norm_apart, norm_limit),
        _gate("cosine of the first step's gradients", candidate.cosine, cosine_limit, candidate.cosine >= cosine_limit),
        _at_most("mean loss of all steps, relative difference", _apart(candidate, reference), mean_limit),
    ]
    if config.precision == "fp16":
        skipped = candidate.skipped_steps / max(1, len(candidate.losses))
        gates.append(_at_most("share of steps that the GradScaler skipped", skipped, MOST_SKIPPED))
    failed = [gate for gate in gates if not gate.passed]
    steps = len(candidate.losses)
    missed = "; ".join(f"{gate.name}: {_figure(gate.value)}, limit {_figure(gate.limit)}" for gate in failed)
    return Numerics(
        outcome="disagrees" if failed else "agrees",
        reason=missed or f"as eager fp32 over {steps} steps",
        steps=steps,
        gates=tuple(gates),
        notes=_batch_norm_note(measured, config, baseline),
    )


class NumericsGuard:
    """Checks configs once for each arithmetic.

    Args:
        measure: Measures a point's agreement over a number of steps, within a deadline in seconds.
        baseline: The user's config, whose arithmetic is not checked.
        note: Receives a message about each config that is left out.
    """

    def __init__(
        self,
        measure: Callable[[Point, int, float], Agreement],
        baseline: Point,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._measure = measure
        self._baseline = baseline
        self._note = note
        self._verdicts: dict[tuple[object, ...], Numerics] = {}

    def known(self, point: Point) -> Numerics | None:
        """The verdict, if there is one already; does not measure."""
        if self._arithmetic(point) == self._arithmetic(self._baseline):
            return Numerics(outcome="unchanged", reason="it computes as the baseline does")
        return self._verdicts.get(self._arithmetic(point))

    def check(self, point: Point, steps: int, deadline_seconds: float) -> Numerics | None:
        """The verdict, measured if there is none yet; None if there is no time for `FEWEST_STEPS`.

        A check that fails to run does not count against the config.
        """
        if (verdict := self.known(point)) is not None:
            return verdict
        if steps < FEWEST_STEPS:
            return None
        try:
            measured = self._measure(point, steps, deadline_seconds)
        except AutotuneError as error:
            verdict = Numerics(outcome="unchecked", reason=f"the check did not end well: {error}")
        else:
            verdict = judge_agreement(measured, point.config, self._baseline.config)
        self._verdicts[self._arithmetic(point)] = verdict
        if verdict.outcome == "disagrees":
            changed = point.changes_text(self._baseline, ", ")
            self._note(f"left out, since it does not train what eager fp32 trains: {changed} ({verdict.reason})")
        return verdict

    @staticmethod
    def _arithmetic(point: Point) -> tuple[object, ...]:
        """Values that decide how results are rounded; with BatchNorm the micro-batch is one of them."""
        return (*point.config.pick(affecting("arithmetic")), *sorted(point.parameters.items()))


def _apart(trace: Trace, reference: Trace, *, first: bool = False) -> float:
    """Relative difference of two runs' losses, in the first step or in the mean over all."""
    mine, theirs = (run.losses[:1] if first else run.losses for run in (trace, reference))
    return _relative(math.fsum(mine) / len(mine), math.fsum(theirs) / len(theirs))


def _relative(value: float, reference: float) -> float:
    """|value − reference| / |reference|; infinite when either is not finite."""
    if not (math.isfinite(value) and math.isfinite(reference)):
        return math.inf
    return 0.0 if value == reference else abs(value - reference) / max(abs(reference), 1e-12)


def _at_most(name: str, value: float, limit: float) -> Gate:
    return _gate(name, value, limit, value <= limit)


def _gate(name: str, value: float, limit: float, passed: bool) -> Gate:
    return Gate(name=name, value=value if math.isfinite(value) else None, limit=limit, passed=passed)


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _batch_norm_note(measured: Agreement, config: TrainConfig, baseline: TrainConfig) -> tuple[str, ...]:
    if not measured.has_batch_norm or config.batch_size == baseline.batch_size:
        return ()
    after, before = config.effective_batch, baseline.effective_batch
    beside = "though the effective batch is the same"
    if after != before:
        beside = f"as does the effective batch of {after} instead of {before}"
    return (
        f"the model has BatchNorm, whose statistics now come from micro-batches of {config.batch_size} "
        f"instead of {baseline.batch_size}: that changes what is learned, {beside}",
    )
