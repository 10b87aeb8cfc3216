"""What a search inside a training may lose."""

from __future__ import annotations

import pytest

from autotune.recorder.live.evidence import Ledger


@pytest.mark.parametrize(("trained", "allowed"), [(0, 0.0), (10, 0.2), (600, 12.0)])
def test_what_may_be_lost_is_a_share_of_what_was_trained(trained: float, allowed: float) -> None:
    """At worst."""
    assert Ledger().may_lose(trained) == pytest.approx(allowed)


@pytest.mark.parametrize(
    ("trained", "lost", "allowed"), [(50, 0.9, True), (50, 1.1, False), (600, 2.5, True), (600, 2.7, False)]
)
def test_after_some_losses_candidates_wait(trained: float, lost: float, allowed: bool) -> None:
    """Much longer than the worst case of the next block would ask for."""
    ledger = Ledger()
    ledger.spent = lost
    assert ledger.allows(steps=0, step_seconds=0.0, start_seconds=0.0, trained_seconds=trained) is allowed


def test_compiling_that_was_allowed_holds_up_no_block() -> None:
    """But it counts in what may be lost."""
    ledger = Ledger()
    ledger.count_compiling(50.0)
    assert ledger.cost == 50.0
    assert ledger.may_lose(3000) == pytest.approx(10.0)
    assert ledger.allows(steps=8, step_seconds=1.0, start_seconds=0.0, trained_seconds=3000)
    assert not ledger.allows(steps=10, step_seconds=1.0, start_seconds=0.0, trained_seconds=3000)


def test_losses_are_taken_off_and_gains_are_added() -> None:
    """What was saved may be lost again."""
    ledger = Ledger()
    ledger.spent += 1.0
    ledger.saved += 2.5
    assert ledger.cost == 1.0
    assert ledger.may_lose(100) == pytest.approx(2.0 + 1.5)


def test_no_more_is_saved_than_the_own_setting_was_seen_to_take() -> None:
    """Though a stall made a step look long meanwhile."""
    ledger = Ledger()
    ledger.count_own(steps=10, seconds=1.0)
    ledger.count_saved(steps=5, step_seconds=8.0, gain=1000.0)
    ledger.count_step(0.001, step_seconds=8.0)
    assert ledger.benefit == pytest.approx(6 * 0.1, rel=0.01)
    assert ledger.may_lose(100) == pytest.approx(2.0 + 6 * 0.1, rel=0.01)


def test_noise_cancels_out_where_steps_have_become_longer() -> None:
    """One that is as fast as the own setting costs nothing, though its steps are of very different lengths."""
    ledger = Ledger()
    ledger.count_own(steps=10, seconds=1.0)
    for seconds in (0.1, 0.5) * 100:
        ledger.count_step(seconds, step_seconds=0.3)
    assert (ledger.cost, ledger.benefit) == pytest.approx((0.0, 0.0))
    assert ledger.may_lose(100) == pytest.approx(2.0)


def test_what_faster_candidates_save_is_a_benefit() -> None:
    """And no cost."""
    ledger = Ledger()
    ledger.spent -= 3.0
    ledger.saved += 1.0
    assert (ledger.cost, ledger.benefit) == (0.0, 4.0)


def test_a_block_is_allowed_where_its_worst_case_fits() -> None:
    """Steps that take twice as long, one more than asked for, and the start."""
    ledger = Ledger()
    assert ledger.allows(steps=9, step_seconds=0.1, start_seconds=1.0, trained_seconds=100)
    assert not ledger.allows(steps=10, step_seconds=0.1, start_seconds=1.0, trained_seconds=100)
