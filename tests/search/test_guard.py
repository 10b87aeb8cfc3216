"""What must not run again: compile modes that failed, by what the failure says of the next burst."""

from __future__ import annotations

import pytest

from autotune.knobs.config import TrainConfig
from autotune.measuring.records import Burst, Outcome, Point
from autotune.search.guard import refusal
from autotune.search.trials import Trial
from tests.spaces import gpu_machine, make_facts, space_of


@pytest.mark.parametrize(
    ("mode", "outcome", "refused"),
    [
        ("default", Outcome.UNSUPPORTED, True),
        ("reduce-overhead", Outcome.UNSUPPORTED, True),
        ("max-autotune", Outcome.TIMEOUT, True),
        ("reduce-overhead", Outcome.CRASHED, True),
        ("default", Outcome.TIMEOUT, False),
        ("default", Outcome.CRASHED, False),
    ],
)
def test_a_mode_that_failed_is_dropped(mode: str, outcome: Outcome, refused: bool) -> None:
    """At any batch; but the default mode's crash or time-out may be the batch's, or a busy machine's."""
    failed = Point(config=TrainConfig(batch_size=32, compile_mode=mode))  # type: ignore[arg-type]
    trial = Trial(Burst(point=failed, outcome=outcome, reason="it did", seconds=100), "", "")
    wanted = Point(config=failed.config.replace(batch_size=64))
    space = space_of(gpu_machine(), make_facts(accumulation_steps=4), budget_seconds=2000.0)
    assert (refusal(wanted, space, [trial]) is not None) == refused
