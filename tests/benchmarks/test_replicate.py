"""Replication: the verdict, and one from a result file to the written figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune import TrainConfig
from autotune.measuring.speedup import Speedup
from autotune.measuring.statistics import Interval
from autotune.results.files import write_document
from autotune.results.result import Side
from benchmarks import output, replicate
from benchmarks.ratios import Ratio
from benchmarks.replicate import Replication
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


def test_the_mean_over_files_weighs_both_directions_alike() -> None:
    """A claim that is half too high and one that is half too low cancel; how many lie where is told beside it."""
    found = replicate.together([make_replication(1.0, 2.0, 0.1), make_replication(2.0, 1.0, 0.1)])
    assert found["mean_off"] == pytest.approx(0)
    assert (found["above_the_claim"], found["below_the_claim"]) == (1, 1)


def test_one_round_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no interval."""
    with pytest.raises(SystemExit):
        replicate.main(["result.json", "--rounds", "1"])
    assert "at least 2" in capsys.readouterr().err


@pytest.mark.slow
def test_a_result_file_is_replicated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both sides train in turn in fresh processes, and the figures are written with all that they came from."""
    path = tmp_path / "tiny.json"
    best = Side(config=TrainConfig(batch_size=32, optimizer_impl="fused"), measurement=None)
    speedup = Speedup(ratio=1.5, ci95=Interval(0.01, 100.0), pairs=2)
    write_document(make_result(target=TINY, name="tiny", best=best, speedup=speedup), path)
    monkeypatch.setattr(output, "FOLDER", tmp_path)
    replicate.main([str(path), "--seconds", "0.6", "--rounds", "2"])
    document: dict[str, Any] = json.loads((tmp_path / "replicate.json").read_text())
    (row,) = document["replications"]
    assert row["realised"]["ratio"] > 0
    assert row["claimed"] == {"ratio": 1.5, "ci95": [0.01, 100.0]}
    assert {name: len(runs) for name, runs in row["runs"].items()} == {"baseline": 2, "tuned": 2}
    assert all(0 <= run["foreign_cpu_fraction"] <= 1 for runs in row["runs"].values() for run in runs)
    assert row["claimed_rates"]["baseline"] == pytest.approx(1000, rel=0.05)
    assert all(len(run["turns"]) >= 1 for runs in row["runs"].values() for run in runs)
    assert (document["seconds_per_side"], document["rounds"]) == (0.6, 2)
    assert document["together"]["mean_off"] == pytest.approx(row["off"])
