"""What a budget must hold: told by what was seen, where it was too short."""

from __future__ import annotations

import pytest

from autotune.errors import NothingFeasibleError, WorkloadError
from autotune.measuring.records import Burst, Outcome
from autotune.search.stopping import USUAL_BURST_SECONDS, sufficient_budget
from autotune.search.trials import Trial
from autotune.sessions.options import Options
from autotune.sessions.tuning_result import Findings, Setting, make_result
from tests.search.surface import example_rate, make_facts, make_hardware, make_search


def late(search_seconds: float) -> Burst:
    """The baseline's burst, out of time."""
    search, _ = make_search(example_rate)
    reason = f"it was still in its phase 'train' after {search_seconds} s"
    return Burst(point=search.baseline, outcome=Outcome.TIMEOUT, reason=reason, seconds=search_seconds)


def test_too_short_a_budget_is_told_with_one_that_would_do() -> None:
    """A busy machine spent it on importing and checking: no burst can be trained in 0.2 s."""
    search, _ = make_search(example_rate)
    burst = late(0.2)
    search.log.trials.append(Trial(burst, "baseline", ""))
    setting = Setting(Options(target="t:b", budget_seconds=10.0), make_hardware(), "cpu", make_facts(), 3.0, 7.8)
    enough = sufficient_budget(7.8, 3.0)
    with pytest.raises(
        NothingFeasibleError,
        match=rf"^the only burst did not complete; .*7.8 s of the 10 s: if nothing hangs, --budget {enough:.0f}s",
    ):
        make_result(search, setting, Findings("budget"), tried=[], notes=[], seconds=10.0)


@pytest.mark.parametrize(("prepared", "checked", "late_seconds"), [(1.0, 0.5, 0.2), (20.0, 8.0, 0.2), (5.0, 1.0, 30.0)])
def test_the_budget_that_would_do_holds_a_small_search(prepared: float, checked: float, late_seconds: float) -> None:
    """On a machine as slow as this one was: on its clock something is confirmed within it."""
    start = max(checked, late_seconds)
    enough = sufficient_budget(prepared, start)
    cost = start + USUAL_BURST_SECONDS
    search, surface = make_search(example_rate, budget_seconds=enough, cost=cost)
    surface.clock.now += prepared
    search.run()
    assert search.confirmation.confirmed()
    assert surface.clock.now <= enough


def test_a_baseline_that_crashed_is_the_users_error_and_nothing_else_is_tried() -> None:
    """Other configs would meet the same error by chance, or not: none of them can be compared with anything."""
    search, surface = make_search(example_rate)
    surface.fails, surface.failing = "ValueError: the labels are wrong", search.baseline
    stopped_by = search.run()
    assert surface.ran == [search.baseline]
    setting = Setting(Options(target="t:b"), make_hardware(), "cpu", make_facts())
    with pytest.raises(WorkloadError, match=r"ended as crashed: ValueError: the labels are wrong; .* fix it") as caught:
        make_result(search, setting, Findings(stopped_by), tried=[], notes=[], seconds=10.0)
    assert "--budget" not in str(caught.value)


def test_a_process_that_could_not_start_is_no_error_of_the_users() -> None:
    """On a machine that is too busy to import torch, say."""
    search, surface = make_search(example_rate)
    surface.fails, surface.failing, surface.failed_in = "it did not import torch", search.baseline, "start"
    stopped_by = search.run()
    setting = Setting(Options(target="t:b"), make_hardware(), "cpu", make_facts())
    with pytest.raises(NothingFeasibleError, match="it did not import torch"):
        make_result(search, setting, Findings(stopped_by), tried=[], notes=[], seconds=10.0)


def test_a_baseline_that_crashed_in_an_earlier_run_is_tried_again() -> None:
    """The user may have fixed it."""
    search, surface = make_search(example_rate)
    crashed = Burst(point=search.baseline, outcome=Outcome.CRASHED, reason="ValueError: broken file", seconds=1.0)
    search.log.trials.append(Trial(crashed, "baseline", "", resumed=True))
    search.run()
    assert surface.ran[0] == search.baseline
    assert search.baseline_trains
