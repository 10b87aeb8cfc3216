"""Lightning Fabric trains with a tuned config: what the other frameworks do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integrations.models import compiling, operators, tuned
from tests.integrations.trainings.by_fabric import Run

if TYPE_CHECKING:
    import pytest


def test_the_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same way as in bursts."""
    with compiling(monkeypatch) as graphs:
        ran = Run(tuned(compile_mode="default", batch_size=13), hooked=False)
    assert "conv2d" in operators(graphs)
    assert (ran.steps, ran.told) == (2, [])


def test_another_precision_is_told() -> None:
    """An argument of the user's that wins is named."""
    ran = Run(tuned(batch_size=13), precision="bf16-mixed")
    assert ran.told == ["Fabric does not apply what was tuned: precision=fp32 (it is bf16-mixed)"]
