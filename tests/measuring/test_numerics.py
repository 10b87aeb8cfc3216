"""The gates of the numerics check, and the guard that asks for it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autotune.errors import WorkloadError
from autotune.knobs.config import TrainConfig
from autotune.measuring.numerics import FEWEST_STEPS, Agreement, NumericsGuard, Trace, judge_agreement
from autotune.measuring.records import Point

BASELINE = TrainConfig(batch_size=8)
BF16 = BASELINE.replace(precision="bf16")
FP16 = BASELINE.replace(precision="fp16")


def trace(first: float = 2.0, mean: float = 1.5, norm: float = 1.0, steps: int = 20, **changes: Any) -> Trace:
    """A run whose losses begin at one figure and have a mean."""
    rest = (mean * steps - first) / (steps - 1)
    return Trace(losses=(first, *[rest] * (steps - 1)), gradient_norm=norm, **changes)


def agreement(candidate: Trace, *, control: Trace | None = None, **changes: Any) -> Agreement:
    """Beside a reference that begins at 2 and has a mean of 1.5, and a control that differs little."""
    control = control or trace(mean=1.501, cosine=0.9999)
    return Agreement(control=control, candidate=candidate, **{"reference": trace(), "has_batch_norm": False, **changes})


def test_small_differences_agree() -> None:
    """Rounding in bf16 moves the loss by a part in a thousand."""
    verdict = judge_agreement(agreement(trace(first=2.004, mean=1.51, norm=1.02, cosine=0.99)), BF16, BASELINE)
    assert (verdict.outcome, verdict.steps) == ("agrees", 20)
    assert all(gate.passed for gate in verdict.gates)


@pytest.mark.parametrize(
    ("candidate", "named"),
    [
        (trace(first=2.1), "loss of the first step"),
        (trace(norm=1.2), "gradient norm"),
        (trace(cosine=0.9), "cosine"),
        (trace(mean=1.6), "mean loss"),
        (Trace(losses=(2.0, math.nan), gradient_norm=1.0), "not finite"),
        (Trace(losses=(2.0, math.inf), gradient_norm=1.0), "not finite"),
    ],
)
def test_each_gate_finds_its_fault(candidate: Trace, named: str) -> None:
    """And the verdict names it."""
    verdict = judge_agreement(agreement(candidate), BF16, BASELINE)
    assert verdict.outcome == "disagrees"
    assert named in verdict.reason


def test_a_verdict_can_be_written_whatever_came() -> None:
    """What is not finite has no figure."""
    candidate = Trace(losses=(math.nan,), gradient_norm=math.inf, cosine=math.nan)
    verdict = judge_agreement(agreement(candidate), BF16, BASELINE)
    assert verdict.outcome == "disagrees"
    assert type(verdict).model_validate_json(verdict.model_dump_json()) == verdict


def test_full_precision_is_held_to_a_closer_limit() -> None:
    """What bf16 may lose, a change of the layout may not."""
    measured = agreement(trace(first=2.02, cosine=0.97))
    assert judge_agreement(measured, BF16, BASELINE).outcome == "agrees"
    assert judge_agreement(measured, BASELINE.replace(compile_mode="default"), BASELINE).outcome == "disagrees"


@pytest.mark.parametrize(("half", "outcome"), [(True, "agrees"), (False, "disagrees")])
def test_a_model_in_half_precision_is_held_to_its_own_rounding(half: bool, outcome: str) -> None:
    """Two neighbours among the losses that bf16 can hold."""
    reference, other = (trace(first=first, mean=6.5, half=half) for first in (6.9375, 6.96875))
    measured = agreement(other, reference=reference, control=reference)
    assert judge_agreement(measured, BASELINE.replace(memory_format="channels_last"), BASELINE).outcome == outcome


def test_what_varies_by_nature_may_vary() -> None:
    """A loss that draws random numbers differs from itself as much."""
    restless = trace(first=2.1, mean=1.7, norm=1.3, cosine=0.8)
    measured = agreement(trace(first=2.2, norm=1.4, cosine=0.7), control=restless)
    assert judge_agreement(measured, BF16, BASELINE).outcome == "agrees"


def test_a_reference_that_is_not_finite_judges_nothing() -> None:
    """The fault is not the config's."""
    control = Trace(losses=(2.0, math.nan), gradient_norm=1.0)
    assert judge_agreement(agreement(trace(), control=control), BF16, BASELINE).outcome == "unchecked"


@pytest.mark.parametrize(("skipped", "outcome"), [(1, "agrees"), (2, "disagrees")])
def test_the_scaler_may_skip_one_step_in_twenty(skipped: int, outcome: str) -> None:
    """After it has found its scale."""
    assert judge_agreement(agreement(trace(skipped_steps=skipped)), FP16, BASELINE).outcome == outcome


@pytest.mark.parametrize(("batch_size", "told"), [(8, False), (4, True)])
def test_another_micro_batch_under_batch_norm_is_told(batch_size: int, told: bool) -> None:
    """Its statistics come from fewer samples, though the effective batch is the same."""
    config = BF16.replace(batch_size=batch_size)
    assert bool(judge_agreement(agreement(trace(), has_batch_norm=True), config, BASELINE).notes) is told


@pytest.mark.parametrize(
    ("steps", "told"),
    [(2, "though the effective batch is the same"), (1, "as does the effective batch of 4 instead of 8")],
)
def test_the_note_on_batch_norm_says_whether_the_effective_batch_changes(steps: int, told: str) -> None:
    """A free one may."""
    config = BF16.replace(batch_size=4, accumulation_steps=steps)
    (note,) = judge_agreement(agreement(trace(), has_batch_norm=True), config, BASELINE).notes
    assert note.endswith(f"that changes what is learned, {told}")


class Bench:
    """Stands where bursts run, and counts."""

    def __init__(self, candidate: Trace | None) -> None:
        self.candidate = candidate
        self.asked: list[Point] = []
        self.notes: list[str] = []
        self.guard = NumericsGuard(self.measure, Point(config=BASELINE), self.notes.append)

    def measure(self, asked: Point, steps: int, deadline_seconds: float) -> Agreement:
        """What was measured; an error when there is nothing."""
        self.asked.append(asked)
        if self.candidate is None:
            raise WorkloadError("it ran out of memory")
        return agreement(self.candidate)


def test_one_arithmetic_is_checked_once() -> None:
    """Workers and threads do not change what is computed."""
    bench = Bench(trace())
    for workers in (0, 2):
        assert bench.guard.check(Point(config=BF16.replace(num_workers=workers)), 20, 10.0).outcome == "agrees"
    assert len(bench.asked) == 1


def test_the_baselines_own_arithmetic_is_not_checked() -> None:
    """It is what the user trains with."""
    bench = Bench(None)
    assert bench.guard.check(Point(config=BASELINE.replace(num_workers=2)), 20, 10.0).outcome == "unchanged"
    assert not bench.asked


def test_what_disagrees_is_told_with_its_knobs() -> None:
    """A person must know why the fastest was not taken."""
    bench = Bench(trace(first=3.0))
    assert bench.guard.check(Point(config=BF16), 20, 10.0).outcome == "disagrees"
    assert "precision=bf16" in bench.notes[0]


def test_a_check_that_fails_is_no_verdict() -> None:
    """The config has trained; that its check did not is said."""
    verdict = Bench(None).guard.check(Point(config=BF16), 20, 10.0)
    assert verdict.outcome == "unchecked"
    assert "ran out of memory" in verdict.reason


def test_without_time_nothing_is_checked() -> None:
    """Fewer steps than a handful say nothing."""
    bench = Bench(trace())
    assert bench.guard.check(Point(config=BF16), FEWEST_STEPS - 1, 10.0) is None
    assert not bench.asked


def test_without_a_loss_nothing_is_judged() -> None:
    """As where gradients come from `torch.autograd.grad`."""
    none = Trace(losses=(), gradient_norm=1.0)
    verdict = judge_agreement(agreement(none, control=none), BF16, BASELINE)
    assert verdict.outcome == "unchecked"
    assert "no loss was seen" in verdict.reason
