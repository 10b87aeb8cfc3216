"""What must not run again: compile modes that failed, by what the failure says of the next burst."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.hardware import Hardware
from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Outcome, Point
from autotune.measuring.telemetry_summary import TelemetrySummary
from autotune.search.refusals import refusal
from autotune.search.trials import Trial
from autotune.timing.failing import PINNING
from tests.factories import make_measurement
from tests.spaces import cpu_machine, gpu_machine, make_facts, space_of


@pytest.mark.parametrize(
    ("mode", "outcome", "refused"),
    [
        ("default", Outcome.UNSUPPORTED, True),
        ("reduce-overhead", Outcome.UNSUPPORTED, True),
        ("max-autotune", Outcome.TIMEOUT, True),
        ("reduce-overhead", Outcome.CRASHED, True),
        ("default", Outcome.TIMEOUT, True),
        ("default", Outcome.CRASHED, True),
        ("blocks", Outcome.TIMEOUT, True),
        ("default", Outcome.INVALID, False),
    ],
)
def test_a_mode_that_failed_is_dropped(mode: str, outcome: Outcome, refused: bool) -> None:
    """At any batch: it was the compiler's, as far as is known."""
    failed = Point(config=TrainConfig(batch_size=32, compile_mode=mode))  # type: ignore[arg-type]
    trial = Trial(Burst(point=failed, outcome=outcome, reason="it did", seconds=100), "", "")
    wanted = Point(config=failed.config.replace(batch_size=64))
    space = space_of(gpu_machine(), make_facts(accumulation_steps=4, repeated_blocks=4), budget_seconds=2000.0)
    assert (refusal(wanted, space, [trial]) is not None) == refused


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CRASHED])
def test_a_mode_is_kept_where_eager_bursts_fail_alike(outcome: Outcome) -> None:
    """Then it was the data's or the machine's, and not the compiler's."""
    eager, compiled = TrainConfig(), TrainConfig(compile_mode="default")
    trials = [Trial(Burst(point=Point(config=one), outcome=outcome, seconds=100), "", "") for one in (eager, compiled)]
    space = space_of(gpu_machine(), make_facts(accumulation_steps=4))
    assert refusal(Point(config=compiled.replace(batch_size=64)), space, trials) is None


@pytest.mark.parametrize(("batch", "retries", "refused"), [(128, 2, True), (64, 2, False), (128, 0, False)])
def test_a_batch_that_is_larger_than_one_for_which_the_allocator_asked_again(
    batch: int, retries: int, refused: bool
) -> None:
    """It would do so more often, which is slow; the batch itself has its figure."""
    telemetry = TelemetrySummary(seconds=1.0, allocator_retries=retries)
    measured = make_measurement().model_copy(update={"telemetry": telemetry})
    known = Point(config=TrainConfig(batch_size=64))
    trial = Trial(Burst(point=known, outcome=Outcome.OK, measurement=measured, seconds=5), "", "")
    space = space_of(gpu_machine(), make_facts(), effective_batch=None)
    found = refusal(Point(config=TrainConfig(batch_size=batch)), space, [trial])
    assert (found is not None and "ask again" in found) == refused


@pytest.mark.parametrize(("machine", "refused"), [(cpu_machine, True), (gpu_machine, False)])
def test_on_a_cpu_a_kill_for_want_of_memory_is_its_own(machine: Callable[[], Hardware], refused: bool) -> None:
    """There the host's memory is the device's; beside a GPU its shortage says nothing about the batch."""
    killed = Point(config=TrainConfig(batch_size=64))
    trial = Trial(Burst(point=killed, outcome=Outcome.HOST_OOM, seconds=5), "", "")
    space = space_of(machine(), make_facts(), effective_batch=None)
    found = refusal(Point(config=TrainConfig(batch_size=128)), space, [trial])
    assert (found is not None and "ran out of memory" in found) == refused


def test_after_pinning_has_failed_only_pinning_is_refused() -> None:
    """Not the batch, as after the GPU's memory had run out."""
    pinned = Point(config=TrainConfig(batch_size=64, num_workers=2, pin_memory=True))
    burst = Burst(point=pinned, outcome=Outcome.HOST_OOM, reason=f"{PINNING}: CUDA error: out of memory", seconds=5)
    space = space_of(gpu_machine(), make_facts(), effective_batch=None)
    points = [Point(config=pinned.config.replace(pin_memory=pins)) for pins in (True, False)]
    refused, allowed = (refusal(point, space, [Trial(burst, "", "")]) for point in points)
    assert refused is not None
    assert "pin" in refused
    assert allowed is None
