"""Replication: what counts of a run, the verdict, and one from a result file to the written figures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from autotune import TrainConfig
from autotune.measurement import Interval, Speedup
from autotune.result import Side, write_result
from autotune.workload import load_workload
from benchmarks import output, replicate
from benchmarks.plain import Loop
from benchmarks.ratios import Ratio
from benchmarks.replicate import Mark, Replication, is_warm, timed_part
from tests.factories import make_result

TINY = "tests.workloads.tiny:build"


def make_replication(claimed: float, realised: float, half_width: float) -> Replication:
    """A replication with intervals of one width around both ratios."""

    def around(ratio: float) -> Ratio:
        return Ratio(ratio=ratio, ci95=Interval(ratio - half_width, ratio + half_width))

    return Replication(
        file="result.json", workload="tiny", device="cpu", changed_knobs={}, claimed=around(claimed),
        realised=around(realised), claimed_rates={"baseline": 100.0, "tuned": None},
        realised_rates={"baseline": 100.0, "tuned": 200.0}, runs={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "batches", "elapsed", "warm"),
    [(3, 16, 0.2, True), (2, 16, 0.2, False), (3, 15, 0.2, False), (3, 16, 0.1, False)],
)
def test_warm_up_needs_steps_batches_and_time(steps: int, batches: int, elapsed: float, warm: bool) -> None:
    """Twice the queue of two workers with four batches each, three steps, and 15 % of the time."""
    config = TrainConfig(num_workers=2, prefetch_factor=4)
    assert is_warm(config, steps, batches, elapsed, 1.0) is warm


def test_whole_epochs_count_when_they_fill_the_time() -> None:
    """A part of an epoch would count its share of the worker start wrongly."""
    marks = [Mark(0, 0, 0), Mark(1, 10, 1), Mark(5, 50, 2), Mark(9, 90, 3), Mark(10, 99, 3)]
    assert timed_part(marks) == (marks[1], marks[3])


@pytest.mark.parametrize("inner", [[], [Mark(5, 50, 1)], [Mark(4, 40, 1), Mark(6, 60, 2)]])
def test_all_of_the_time_counts_when_epochs_are_long(inner: list[Mark]) -> None:
    """Little would be left of the run."""
    marks = [Mark(0, 0, 0), *inner, Mark(10, 100, 2)]
    assert timed_part(marks) == (marks[0], marks[-1])


@pytest.mark.parametrize(
    ("claimed", "realised", "half_width", "came_true"),
    [(2.0, 1.95, 0.001, True), (2.0, 1.5, 0.3, True), (2.0, 1.5, 0.1, False), (1.0, 1.2, 0.01, False)],
)
def test_a_claim_fails_when_it_is_off_and_the_intervals_are_apart(
    claimed: float, realised: float, half_width: float, came_true: bool
) -> None:
    """Within 5 % it holds however narrow the intervals are; beyond, only if they overlap."""
    assert make_replication(claimed, realised, half_width).came_true is came_true


def test_recommending_the_baseline_claims_exactly_one() -> None:
    """A file without a confirmed speed-up says that nothing is faster."""
    assert replicate.claim(make_result(speedup=None)) == Ratio(ratio=1.0, ci95=Interval(1.0, 1.0))


def test_epochs_are_really_crossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts the loader anew, and from mark to mark lie its samples; a look at the clock takes a second here."""
    ticks = itertools.count()
    monkeypatch.setattr(replicate.time, "perf_counter", lambda: float(next(ticks)))
    started: list[object] = []
    monkeypatch.setattr(DataLoader, "__iter__", counting(DataLoader.__iter__, started))
    loop = Loop(load_workload(TINY), TrainConfig(batch_size=32, num_workers=1), "cpu")
    warmup, marks = replicate.timed_marks(loop, 0.0, 100.0)
    assert warmup >= 15
    assert marks[-1].seconds - marks[0].seconds == pytest.approx(85, abs=2)
    assert {later.samples - earlier.samples for earlier, later in itertools.pairwise(marks[1:-1])} == {512}
    assert len(started) == loop.epochs + 1 >= 4


def counting(function: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    """The function, noting what it is called on."""

    def counted(self: object) -> Any:
        calls.append(self)
        return function(self)

    return counted


@pytest.mark.parametrize(("realised", "status"), [(1.99, 0), (1.5, 1)])
def test_exit_status_says_whether_all_claims_came_true(
    realised: float, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And both facts are printed."""
    monkeypatch.setattr(replicate, "replicate", lambda *_: make_replication(2.0, realised, 0.001))
    monkeypatch.setattr(output, "FOLDER", tmp_path)
    assert replicate.main(["result.json"]) == status
    printed = capsys.readouterr().out
    assert ("NOT within 5%" in printed) == bool(status)
    assert "the intervals do NOT overlap" in printed


def test_one_round_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no interval."""
    with pytest.raises(SystemExit):
        replicate.main(["result.json", "--rounds", "1"])
    assert "at least 2" in capsys.readouterr().err


def test_a_result_file_is_replicated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both sides train in fresh processes, and the figures are written with all that they came from."""
    path = tmp_path / "tiny.json"
    best = Side(config=TrainConfig(batch_size=32, optimizer_impl="fused"), measurement=None)
    speedup = Speedup(ratio=1.5, ci95=Interval(0.01, 100.0), pairs=2)
    write_result(make_result(target=TINY, name="tiny", best=best, speedup=speedup), path)
    monkeypatch.setattr(output, "FOLDER", tmp_path)
    replicate.main([str(path), "--seconds", "0.6", "--rounds", "2"])
    document: dict[str, Any] = json.loads((tmp_path / "replicate.json").read_text())
    (row,) = document["replications"]
    assert row["realised"]["ratio"] > 0
    assert row["claimed"] == {"ratio": 1.5, "ci95": [0.01, 100.0]}
    assert {name: len(runs) for name, runs in row["runs"].items()} == {"baseline": 2, "tuned": 2}
    assert all(0 <= run["foreign_cpu_fraction"] <= 1 for runs in row["runs"].values() for run in runs)
    assert row["claimed_rates"]["baseline"] == pytest.approx(1000, rel=0.05)
    assert (document["seconds_per_side"], document["rounds"]) == (0.6, 2)
