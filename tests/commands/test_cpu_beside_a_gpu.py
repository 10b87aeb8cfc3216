"""A machine has a GPU that this torch cannot use: nobody finds out later that the CPU was tuned."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.hardware import merge
from autotune.measuring.progress import Progress
from autotune.search.stopping import Budget
from autotune.sessions import tuning
from autotune.sessions.options import Options
from autotune.sessions.tuning import Tuning
from tests.spaces import gpu_machine

REPORT = {"torch": "2.13.0+cpu", "cuda": None, "gpus": [], "peaks": None, "unread": {}}


def test_a_gpu_that_torch_cannot_use_is_no_reason_to_tune_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, with the reason, until the user asks for the CPU; then it is said first."""
    monkeypatch.setattr(tuning, "look_at_machine", lambda *_, **__: merge(gpu_machine(), REPORT))

    def device_with(**options: Any) -> tuple[str, tuple[str, ...]]:
        tuned = Tuning(Options(target="made.up:build", **options), Progress(), Budget(60.0))
        return tuned._look_at_machine(None, None)[1], tuned.notes  # type: ignore[arg-type]

    with pytest.raises(UsageError, match=r"RTX 4070, but torch 2\.13\.0\+cpu cannot use it; install one"):
        device_with()
    device, notes = device_with(device="cpu")
    assert device == "cpu"
    assert "cannot use it" in notes[0]
