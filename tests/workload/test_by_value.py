"""A function that is sent to the bursts by value: what comes along besides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from autotune.workload.by_value import Sent, load_sent


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    backend = torch.backends.cudnn
    former = backend.deterministic, backend.allow_tf32
    yield
    backend.deterministic, backend.allow_tf32 = former
    torch.use_deterministic_algorithms(False)


def build() -> None:
    """Builds nothing."""


@pytest.mark.parametrize("warn_only", [False, True])
def test_settings_for_equal_results_come_along(warn_only: bool, tmp_path: Path) -> None:
    """Deterministic algorithms take longer, and convolutions in TF32 take less time."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    file = tmp_path / "build.sent"
    Sent.of(build).write(file)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = False, True
    torch.use_deterministic_algorithms(False)
    load_sent(str(file))
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32) == (True, False)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() is warn_only
