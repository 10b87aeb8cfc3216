"""What watching costs: the watcher runs, both halves of a round are measured, and a loss is a positive cost."""

from __future__ import annotations

import threading

import pytest

from autotune.knobs.config import TrainConfig
from benchmarks import telemetry_cost


def test_watcher_is_a_thread_that_ends() -> None:
    """It runs while it is open and is gone afterwards."""
    before = threading.active_count()
    with telemetry_cost.make_watcher():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_cost_is_the_median_share_that_is_lost() -> None:
    """One round that something else disturbed does not move it, and a loss is positive."""
    row = telemetry_cost.cost(telemetry_cost.Rates([98.0, 97.0, 1.0, 98.0, 99.0], [100.0] * 5, look_seconds=0.002))
    assert row["cost"] == pytest.approx(0.02)
    assert row["low"] <= row["cost"] <= row["high"]
    assert row["met"] is False


def test_a_look_takes_time() -> None:
    """Reading the process tree is what the watcher does; it costs CPU time."""
    assert telemetry_cost.look_seconds(looks=2) > 0


def test_each_round_trains_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rates of either as rounds."""
    monkeypatch.setattr(telemetry_cost, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(telemetry_cost, "WARMUP_SECONDS", 0.05)
    rates = telemetry_cost.measure(telemetry_cost.Case("tests.workloads.tiny:build", TrainConfig()), rounds=3)
    assert len(rates.watched) == len(rates.alone) == 3
    assert min(rates.watched + rates.alone) > 0
