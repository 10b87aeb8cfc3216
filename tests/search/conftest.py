"""Searches on made-up surfaces judge hundreds of intervals, and none of them to the last digit."""

from __future__ import annotations

import pytest

from autotune.measuring import speedup, statistics

RESAMPLES = 100
"""A tenth of what a real search draws, which costs no time beside its bursts; with a virtual clock it is the cost.

The limits of an interval then scatter by a tenth of its width, and the surfaces' gains are several widths."""


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (speedup, statistics):
        monkeypatch.setattr(module, "BOOTSTRAP_RESAMPLES", RESAMPLES)
