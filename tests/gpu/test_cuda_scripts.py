"""Scripts on a GPU: forked before CUDA is opened, their batches copied without waiting, and each change checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.bursts.hosts.protocol import BurstPlan
from autotune.bursts.runner import ProcessRunner
from autotune.measuring import Burst, Point
from autotune.measuring.records import Outcome
from autotune.scripts import ScriptIsolation
from tests.example_scripts import START_SECONDS, script

if TYPE_CHECKING:
    import pytest

PLAN = BurstPlan(measure_seconds=0.5)


def bursts(isolation: ScriptIsolation, *changes: dict[str, object]) -> list[Burst]:
    """A burst of each of some changes."""
    runner = ProcessRunner(isolation, "cuda")
    baseline = runner.check(START_SECONDS).baseline
    return [runner.run(Point(config=baseline.replace(**one)), PLAN, 120.0) for one in changes]


def test_a_script_is_forked_before_it_opens_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each burst opens it in a process of its own, and does not prepare again; what is changed is in effect."""
    monkeypatch.chdir(tmp_path)
    with ScriptIsolation(script("on_gpu")) as isolation:
        isolation.start(START_SECONDS)
        assert isolation.seen.cuda_opened
        found = bursts(
            isolation,
            {},
            {"num_workers": 1, "pin_memory": True, "non_blocking": True},
            {"precision": "bf16", "memory_format": "channels_last", "optimizer_impl": "fused"},
            {"allocator": "tuned", "cudnn_benchmark": True},
        )
        assert isolation.fork_unsafe_reason is None
    assert [(one.outcome, one.reason) for one in found] == [(Outcome.OK, None)] * len(found)
    for one in found:
        assert one.measurement is not None
        assert (one.measurement.start_seconds or 0.0) < 10.0  # what the script sleeps before it opens CUDA


def test_copies_of_memory_that_is_not_page_locked_are_no_copies_that_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that says itself whether copies wait leaves nothing to change."""
    monkeypatch.chdir(tmp_path)
    with ScriptIsolation(script("on_gpu", "waits")) as isolation:
        isolation.start(START_SECONDS)
        (found,) = bursts(isolation, {"pin_memory": True, "non_blocking": True})
    assert found.outcome is Outcome.UNSUPPORTED
    assert found.without_effect == ("non_blocking",)
